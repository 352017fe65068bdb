/* SPDX-License-Identifier: Apache-2.0 */
/* foreign.js: files that are no request: which program wrote one, and what makes a request
 * of it. */

/* Python that converts the file sys.argv[1]. save_file() takes neither views nor shared
 * memory. */
const saveTensors = (tensors) => `save_file(${tensors}, sys.argv[1] + '.safetensors')`;
const CONVERT_CSV = "import sys, numpy as np; np.save(sys.argv[1] + '.npy', np.loadtxt(sys.argv[1], delimiter=',', ndmin=2))";
const CONVERT_NPZ = "import sys, numpy as np; from safetensors.numpy import save_file; "
  + saveTensors("{k: np.ascontiguousarray(v) for k, v in np.load(sys.argv[1]).items()}");
const CONVERT_TORCH = "import sys, torch; from safetensors.torch import save_file; "
  + "t = torch.load(sys.argv[1], 'cpu', weights_only=True); t = t if isinstance(t, dict) else {'queries': t}; "
  + saveTensors("{k: v.clone().contiguous() for k, v in t.items()}");

/* By their first bytes, each a character: what has them, what to do, and the Python. The
 * first file of an archive of NumPy ends in .npy; torch.save() writes archives, too. */
const FOREIGN_FORMATS = [
  [/^"",/, "a CSV of this page, with the weights of one head", "save the picture as JSON, and drop that"],
  [/^\s*[-+.\d][-+.\deE \t]*[,;]/, "CSV", "make an array of its rows, and drop that", CONVERT_CSV],
  [/^PK\x03\x04.{26,200}?\.npy/s, "an .npz file of NumPy",
    "convert it, with arrays called queries, keys and values", CONVERT_NPZ],
  [/^(PK\x03\x04|\x80\x02\x8a\nl\xfc\x9cF)/, "a file of torch.save()",
    "convert its tensor, or its tensors called queries, keys and values", CONVERT_TORCH],
  [/^\x80([\x02\x03]\}|[\x04\x05]\x95)/, "a pickle of Python", "load it with pickle.load() if you trust its origin, "
    + "and save its arrays as queries, keys and values with save_file() of safetensors.numpy"],
];

const quoteShell = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/* Refuses a file that another program wrote, by its first bytes. */
function refuseForeign(bytes, name) {
  const begin = String.fromCharCode(...bytes.subarray(0, 256));
  const [, what, remedy, script] = FOREIGN_FORMATS.find(([pattern]) => pattern.test(begin)) ?? [];
  if (what)
    throw new Problem({ title: "Another format", field: "queries", detail: `${name} is ${what}; ${remedy}`
      + (script ? `: python3 -c "${script}" ${quoteShell(name)}` : "") });
}
