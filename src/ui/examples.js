/* SPDX-License-Identifier: Apache-2.0 */
/* examples.js: an input for every model. Built-in models have one that means something;
 * the others get random numbers of their sizes. */

/* Returns a generator of numbers below 1, the same for the same seed (mulberry32). */
function makeRandom(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/* Rows of normal numbers with three decimals, so that the request stays short as text. */
function randomRows(random, length, width) {
  const normal = () => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
  return Array.from({ length }, () =>
    Array.from({ length: width }, () => Math.round(normal() * 1000) / 1000));
}

/* The six words of Raschka's chapter 3, and their embeddings. */
const JOURNEY_ROWS = {
  Your: [0.43, 0.15, 0.89],
  journey: [0.55, 0.87, 0.66],
  starts: [0.57, 0.85, 0.64],
  with: [0.22, 0.58, 0.33],
  one: [0.77, 0.25, 0.10],
  step: [0.05, 0.80, 0.55],
};

/* A row of the model `patterns`: which word it is, then where it is (docs/heads.md). */
const PATTERNS_WORDS =
  "the a big small dog cat mouse bird chased saw heard ran slept and but then".split(" ");

function embedPattern(word, place) {
  const identity = PATTERNS_WORDS.map((known) => Number(known === word));
  const position = Array.from({ length: 8 }, (_, m) => (2 * m + 1) * Math.PI / 16 * place)
    .flatMap((angle) => [Math.sin(angle), Math.cos(angle)]);
  return [...identity, ...position].map((value) => Math.round(value * 1e6) / 1e6);
}

/* The two layers of that chapter have the same sentence, and differ in their weights. */
const BOOK_MODEL = {
  fits: (model) => model.query_size === 3 && model.num_heads === 2,
  about: "The sentence of Raschka's Build a Large Language Model (From Scratch), chapter 3.",
  text: "Your journey starts with one step",
  words: Object.keys(JOURNEY_ROWS),
  embed: (word) => JOURNEY_ROWS[word],
};

/* Built-in models have a sentence, its vocabulary, and a way from a word to a row. `fits`
 * says whether a model of that name is really the built-in one. */
const SENTENCE_MODELS = {
  patterns: {
    fits: (model) => model.query_size === 32 && model.num_heads === 8,
    about: "A sentence as words and places, and eight heads built to do one thing each.",
    text: "the dog chased the cat and the cat chased the mouse",
    words: PATTERNS_WORDS,
    outputs: PATTERNS_WORDS,
    embed: embedPattern,
  },
  journey: BOOK_MODEL,
  stacked: BOOK_MODEL,
};

/* Returns the entry above for a model, or null. */
function sentenceModel(model) {
  const known = Object.hasOwn(SENTENCE_MODELS, model.name) ? SENTENCE_MODELS[model.name] : null;
  return known && known.fits(model) ? known : null;
}

/* A word without case and the marks of a sentence. */
const foldWord = (word) => word.toLowerCase().replace(/^[.,;:!?"'()]+|[.,;:!?"'()]+$/g, "");

/* Returns {request, queryLabels} for a sentence, or throws a Problem at the field. */
function makeSentence(model, known, text) {
  const typed = splitWords(text).filter((word) => foldWord(word) !== "");
  const words = typed.map((word) => known.words.find((each) => foldWord(each) === foldWord(word)));
  const unknown = typed[words.indexOf(undefined)], most = model.context_length ?? Infinity;
  if (words.length === 0 || unknown !== undefined)
    throw new Problem({ title: "Unknown word", field: "text", detail: unknown === undefined
      ? "write at least one word"
      : `'${unknown}' is not a word of this model; use ${known.words.join(", ")}` });
  if (words.length > most)
    throw new Problem({ title: "Too many words", field: "text", detail: `${words.length} words; this model takes ${most}` });
  const queries = words.map((word, place) => known.embed(word, place));
  return { request: makeRequest({ model: model.name, queries }), queryLabels: words };
}

/* Chapter 11.5 of Dive into Deep Learning, with random numbers instead of ones: two
 * sequences of 4 queries and 6 keys, of which 3 and 2 are valid. */
function makeD2l(model) {
  const random = makeRandom(11);
  const batch = (length, width) => [0, 1].map(() => randomRows(random, length, width));
  const fields = { model: model.name, queries: batch(4, model.query_size),
    keys: batch(6, model.key_size), valid_lens: [3, 2] };
  if (model.value_size !== model.key_size)
    fields.values = batch(6, model.value_size);
  return { request: makeRequest(fields) };
}

const RANDOM_NUMBERS_MAX = 2 ** 23; /* more take the page too long to make */

/* One sequence of `count` tokens; keys and values are made only where the model needs
 * them, or widths of their own. */
function makeRandomInput(model, count, seed) {
  const width = model.query_size + model.key_size + model.value_size;
  if (count * width > RANDOM_NUMBERS_MAX)
    throw new Problem({ title: "Too many tokens", field: "count",
      detail: `this page makes up to ${formatCount(Math.floor(RANDOM_NUMBERS_MAX / width))} tokens for `
        + `${model.name}; drop a file with more` });

  const random = makeRandom(seed);
  const fields = { model: model.name, queries: randomRows(random, count, model.query_size) };
  if (model.key_size !== model.query_size || (model.kind ?? "self") !== "self")
    fields.keys = randomRows(random, count, model.key_size);
  if (model.value_size !== model.key_size)
    fields.values = randomRows(random, count, model.value_size);
  return { request: makeRequest(fields), noReport: "What heads do with random numbers says nothing of them: send rows of a text as your own request." };
}

/* The worked example of a model: {about, request, queryLabels}, or noise. */
function makeExample(model, text) {
  const known = sentenceModel(model);
  if (known)
    return { about: known.about, ...makeSentence(model, known, text) };
  if (model.name === "d2l")
    return { about: "Two sequences of 4 queries and 6 keys, as in chapter 11.5 of Dive into Deep "
      + "Learning; 3 and 2 of the keys are valid. The numbers are random.", ...makeD2l(model) };
  const count = Math.min(16, model.context_length ?? 16);
  return { about: `This page has no example for ${model.name}: these are ${count} tokens of random numbers.`,
    ...makeRandomInput(model, count, 1) };
}
