/* SPDX-License-Identifier: Apache-2.0 */
/* kept.js: a file of captures that the server keeps, so that its tensors are sent once and
 * not with each request. Its name there is random, and it is deleted when the page is left. */

const CAPTURES = "v1/captures";
const keptFiles = new Map(); /* for each file a promise of {name, note}; no name: it is not kept */

const pathOfKept = (name) => `${CAPTURES}/${name}`;

function makeKeptName() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return `ui-${Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

async function putFile(file) {
  const name = makeKeptName();
  try {
    await fetchReply(CAPTURES); /* a refusal may not reach a browser that still sends a large file */
    await fetchReply(pathOfKept(name), { method: "PUT", body: file, headers: { "Content-Type": "application/vnd.safetensors" } });
    return { name, note: "The server keeps it." };
  } catch (error) {
    if (!(error instanceof Problem))
      throw error;
    const why = error.title === "Captures are off" ? "this server keeps no captures" : error.detail;
    return { name: null, note: `Its tensors are sent with each request: ${why}.` };
  }
}

/* Lets the server keep a file that is still open: nobody would delete another. Returns {name, note}. */
function keepFile(file) {
  if (!form.models.some(({ capture }) => capture?.file === file))
    return { name: null, note: "" };
  if (!keptFiles.has(file))
    keptFiles.set(file, putFile(file));
  return keptFiles.get(file);
}

const isFileKept = async (file) => Boolean(file) && (await keepFile(file)).name !== null;

/* Deletes the files that the server keeps for this page, because others are opened or it is left. */
function dropKeptFiles() {
  for (const kept of keptFiles.values())
    kept.then(({ name }) => name && fetch(pathOfKept(name), { method: "DELETE", keepalive: true, headers: withKey() }))
      .catch(() => { /* it expires */ });
  keptFiles.clear();
}

/* Returns the request for `what` of the server's own copy, or null where it has none. */
async function askKept({ fields, kept }, what) {
  const { name } = kept ? await keepFile(kept.file) : { name: null };
  const options = Object.entries(fields).filter(([field, value]) => !isTensor(value) && !field.startsWith("num_"));
  return name && { fields: { ...Object.fromEntries(options), layer: kept.layer }, binary: true,
    path: `${pathOfKept(name)}/${what}` };
}

/* post() of the request, for the server's own copy where it has one. One that it has lost is put again, once. */
async function postKept(request, post, what = "attention") {
  const asked = await askKept(request, what), sent = keptFiles.get(request.kept?.file);
  if (!asked)
    return post(request);
  try {
    return await post(asked);
  } catch (error) {
    if (error.title !== "Unknown capture")
      throw error;
    if (keptFiles.get(request.kept.file) === sent) /* else another request has put it again */
      keptFiles.delete(request.kept.file);
    return post(await askKept(request, what) ?? request);
  }
}

addEventListener("pagehide", dropKeptFiles);
