#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""families_table.py ROOT LIST [--write]: checks that docs/checkpoints.md has the families of the code.

LIST is the program list_families.c, which reads the table. Models are sorted by what people call
them, and those with the same layers share a row. A type that has no such name here is called by
itself. With --write the page gets the table."""
import collections
import pathlib
import re
import subprocess
import sys

BEGIN, END = "<!-- families: python3 tests/style/families_table.py writes these lines -->\n", "<!-- end -->\n"

# What people call models, and their types.
CALLED = {
    "AFM (Arcee Foundation Model)": "arcee", "AIMv2": "aimv2_vision_model", "ALBERT": "albert", "Apertus": "apertus",
    "AST (audio spectrograms)": "audio-spectrogram-transformer", "Aya Vision": "aya_vision", "Bamba": "bamba",
    "BART": "bart", "BERT": "bert", "BioGPT": "biogpt", "BitNet": "bitnet", "BlenderBot": "blenderbot blenderbot-small",
    "BLIP": "blip blip_text_model", "BLOOM": "bloom", "CamemBERT": "camembert", "Chinese CLIP": "chinese_clip",
    "CLIP": "clip clip_text_model clip_vision_model", "Code World Model": "cwm", "CodeGen": "codegen",
    "Command R, Aya Expanse": "cohere", "Command R7B, Command A": "cohere2", "CTRL": "ctrl",
    "data2vec": "data2vec-text data2vec-audio", "DBRX": "dbrx", "DeBERTa v2, v3": "deberta-v2",
    "DeepSeek V2": "deepseek_v2", "DeepSeek V3, R1": "deepseek_v3", "DeiT": "deit", "DETR": "detr",
    "DINOv2": "dinov2 dinov2_with_registers", "DINOv3": "dinov3_vit", "DistilBERT": "distilbert", "dots.llm1": "dots1",
    "ELECTRA": "electra", "EmbeddingGemma 2": "embedding_gemma2 embedding_gemma2_text", "ERNIE": "ernie",
    "ERNIE 4.5": "ernie4_5 ernie4_5_moe", "ESM": "esm", "EuroBERT": "eurobert",
    "EXAONE 4": "exaone4", "K-EXAONE": "exaone_moe", "Falcon": "falcon RefinedWebModel RefinedWeb",
    "Falcon H1": "falcon_h1", "FlexOlmo": "flex_olmo", "Gemma": "gemma", "Gemma 2": "gemma2",
    "Gemma 3": "gemma3 gemma3_text", "Gemma 3n": "gemma3n gemma3n_text", "Gemma 4": "gemma4 gemma4_text",
    "GLM 4": "glm glm4", "GLM 4.5, 4.6": "glm4_moe", "GLM 4.7 Flash": "glm4_moe_lite",
    "GLM 4.1V, 4.5V": "glm4v glm4v_text glm4v_moe glm4v_moe_text", "GPT": "openai-gpt", "GPT-2": "gpt2",
    "GPT-J": "gptj", "GPT-Neo": "gpt_neo", "GPT-NeoX, Pythia": "gpt_neox", "GPT-NeoX Japanese": "gpt_neox_japanese",
    "gpt-oss": "gpt_oss", "Granite": "granite granitemoe granitemoeshared granite_swa", "Granite 4": "granitemoehybrid",
    "GTE": "gte new",
    "Helium": "helium", "HuBERT": "hubert", "Hunyuan": "hunyuan_v1_dense hunyuan_v1_moe hy_v3",
    "HyperCLOVA X": "hyperclovax",
    "I-JEPA": "ijepa", "Idefics 3": "idefics3", "ImageGPT": "imagegpt", "InternVL": "internvl", "Jais 2": "jais2",
    "Jamba": "jamba", "Jina Embeddings v3": "jina_embeddings_v3", "LayoutLM": "layoutlm",
    "LFM 2": "lfm2 lfm2_moe lfm2_vl", "Llama 1 to 3, TinyLlama, Yi, and many others": "llama",
    "Llama 3.2 Vision": "mllama mllama_text_model", "Llama 4": "llama4 llama4_text",
    "LLaVA": "llava llava_onevision", "M2M-100, NLLB": "m2m_100", "Marian, Opus-MT": "marian", "mBART": "mbart",
    "Megatron-BERT": "megatron-bert", "MetaCLIP 2": "metaclip_2", "MiMo": "mimo", "MiMo V2": "mimo_v2_flash",
    "MiniCPM 3": "minicpm3", "MiniMax Text": "minimax",
    "MiniMax M2": "minimax_m2", "Ministral": "ministral ministral3", "Mistral": "mistral",
    "Mistral Small 3": "mistral3",
    "Mistral 4": "mistral4", "Mixtral": "mixtral", "ModernBERT": "modernbert modernbert-decoder",
    "Moonshine": "moonshine",
    "MPNet": "mpnet", "MPT": "mpt", "nanochat": "nanochat", "nanoGPT": "nanogpt", "Nemotron": "nemotron",
    "Nemotron H": "nemotron_h", "Nomic Embed": "nomic_bert", "OLMo": "olmo", "OLMo 2": "olmo2", "OLMo 3": "olmo3",
    "OLMo Hybrid": "olmo_hybrid", "OLMoE": "olmoe", "OPT": "opt", "OWL-ViT": "owlvit owlv2", "PaliGemma": "paligemma",
    "PEGASUS": "pegasus", "Persimmon": "persimmon", "Phi 1, 2": "phi", "Phi 3, 4": "phi3", "Phi 3.5 MoE": "phimoe",
    "Phi 4 Multimodal": "phi4_multimodal phi4_multimodal_text",
    "PLBART": "plbart", "Qwen 1.5, 2, 2.5, QwQ": "qwen2", "Qwen 1.5, 2 MoE": "qwen2_moe", "Qwen 2 Audio": "qwen2_audio",
    "Qwen 2, 2.5 VL": "qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text", "Qwen 3, voyage-4-nano": "qwen3",
    "Qwen 3 MoE": "qwen3_moe",
    "Qwen 3 Next, Coder Next": "qwen3_next",
    "Qwen 3 VL": "qwen3_vl qwen3_vl_text qwen3_vl_moe qwen3_vl_moe_text",
    "Qwen 3.5, 3.6": "qwen3_5 qwen3_5_text qwen3_5_moe qwen3_5_moe_text", "RemBERT": "rembert",
    "RoBERTa": "roberta roberta-prelayernorm", "RoFormer": "roformer", "Seed-OSS": "seed_oss",
    "SigLIP": "siglip siglip_text_model siglip_vision_model", "SigLIP 2": "siglip2", "SmolLM 3": "smollm3",
    "SmolVLM": "smolvlm", "Solar Open": "solar_open", "Speech2Text": "speech_to_text", "Splinter": "splinter",
    "StableLM": "stablelm", "StarCoder": "gpt_bigcode", "StarCoder 2": "starcoder2", "T5, Flan-T5": "t5",
    "mT5": "mt5", "UMT5": "umt5", "T5Gemma": "t5gemma", "Trinity (Arcee)": "afmoe", "UniSpeech": "unispeech",
    "VaultGemma": "vaultgemma", "VideoMAE": "videomae", "ViT": "vit vit_mae vit_msn", "Voxtral": "voxtral voxtral_text",
    "wav2vec 2.0": "wav2vec2", "wav2vec2-BERT": "wav2vec2-bert", "Whisper": "whisper", "XGLM": "xglm",
    "XLM-RoBERTa, BGE-M3, E5": "xlm-roberta", "XLM-RoBERTa XL": "xlm-roberta-xl", "YOLOS": "yolos", "Youtu": "youtu",
}


def simplify(features):
    """Returns the features of a layer without their numbers."""
    size = re.search(r"heads of (\d+)", features)[1]
    for feature in features.replace(" (not in the file)", "").split(", "):
        if feature in ("plain", "cross") or feature.startswith("heads of "):
            continue
        rotated = re.search(r"^rope.* of (\d+)", feature)
        feature = re.sub(r"^bias of .*", "bias in buckets", re.sub(r"^queries times .*", "factor of queries", feature))
        feature = re.sub(r"^keys of layer .*", "borrowed keys", re.sub(r"^rope.* interleaved", "rope of neighbours", feature))
        feature = re.sub(r"^sections .*", "sections", re.sub(r"^grid of .*", "patches of a grid", feature))
        feature = re.sub(r"^rope (yarn|llama3)", "rope", re.sub(r"^scale .*", "own scale", feature))
        feature = re.sub(r"( of)? [\d.e+-]+(?= |$)", "", feature).replace("rope", "rotary").replace("RMS norm", "RMS")
        yield feature + (" in part" if rotated and rotated[1] != size else "")


def read_families(program):
    """Returns what layers of each type have, in words."""
    layers = collections.defaultdict(list)
    for line in subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines():
        kind, part, features = line.split("\t")
        layers[kind].append((part, list(simplify(features))))
    families = {}
    for kind, found in layers.items():
        parts = " ".join(dict.fromkeys(part.rstrip(".") for part, _ in found)).split()
        words = [{"encoder decoder decoder.cross": "encoder, decoder, cross",
                  "cross": "perhaps cross", "text vision": "text and images",
                  "vision": "images"}.get(" ".join(parts), " ".join(parts))]
        found = [(part, features) for part, features in found if not part.endswith("cross")]
        counts = collections.Counter(feature for _, features in found for feature in features)
        words += [feature + ("" if count == len(found) else " (some)") for feature, count in counts.items()]
        families[kind] = ", ".join(word for word in words if word) or "plain"
    return families


def read_texts(root):
    """Returns the family of the text of each model with images or sound."""
    table = (root / "src/weights/families/table.c").read_text()
    table = table[table.index("texts[] = {"):]
    return dict(re.findall(r'^ {4}\{"(\w+)", [^,]+,\s+"(\w+)"', table[:table.index("};")], re.M))


def make_table(families, texts):
    """Returns a row for all models whose layers are alike, and one for those of which the text is served."""
    called = {kind: name for name, kinds in CALLED.items() for kind in kinds.split()}

    def name_models(kinds):
        models = collections.defaultdict(list)
        for kind, shown in kinds:
            models[called.get(kind, kind)].append(shown)
        return ", ".join(", ".join(models[name]) if [name.lower()] == [kind.strip("`") for kind in models[name]]
                         else f"{name} ({', '.join(models[name])})" for name in sorted(models, key=str.lower))

    alike = collections.defaultdict(list)
    for kind, words in families.items():
        alike[words].append((kind, f"`{kind}`"))
    rows = sorted(((name_models(kinds), words) for words, kinds in alike.items()),
                  key=lambda row: row[0].strip("`").lower())
    rows.append((name_models((kind, f"`{kind}` as `{text}`") for kind, text in texts.items() if kind not in families),
                 "the text, as the type behind it has"))
    lines = ["| models (`model_type`) | what their layers have |", "|---|---|"]
    return "\n".join(lines + [f"| {models} | {words} |" for models, words in rows]) + "\n"


def main():
    root = pathlib.Path(sys.argv[1])
    page = root / "docs/checkpoints.md"
    text = page.read_text()
    first, last = text.index(BEGIN) + len(BEGIN), text.index(END)
    table = make_table(read_families(sys.argv[2]), read_texts(root))
    if sys.argv[3:] == ["--write"]:
        page.write_text(text[:first] + "\n" + table + "\n" + text[last:])
    elif text[first:last].strip() != table.strip():
        print(f"docs/checkpoints.md is out of date; run: python3 {sys.argv[0]} {root} {sys.argv[2]} --write")
        return 1
    return 0


sys.exit(main())
