/* SPDX-License-Identifier: Apache-2.0 */
/* key.js: the key that the server may ask for. It is in the memory of this page only: not
 * in the address, in no storage, and in nothing that the page saves. */

const access = { key: "", asked: null /* a promise, while the field is shown */ };

/* Headers with the key, if there is one. */
const withKey = (headers = {}) => (access.key === "" ? headers
  : { ...headers, "Authorization": `Bearer ${access.key}` });

/* Shows the field until a key was entered. `refused`: the server does not know the last. */
function askForKey(refused) {
  access.asked ??= new Promise((resolve) => {
    const form = byId("key-form"), field = byId("key");
    byId("key-error").hidden = !refused;
    setAttributes(field, { "aria-invalid": refused ? "true" : null });
    form.hidden = false;
    field.focus();
    form.onsubmit = (event) => {
      event.preventDefault();
      access.key = field.value;
      access.asked = null;
      field.value = "";
      form.hidden = true;
      resolve();
    };
  });
  return access.asked;
}

/* fetch(), which asks for a key as long as the server refuses the last. Others may have
 * entered one since this request was sent. */
async function fetchWithKey(path, options) {
  for (;;) {
    const sent = access.key;
    const reply = await fetch(path, { ...options, headers: withKey(options.headers) });
    if (reply.status !== 401)
      return reply;
    if (access.key === sent)
      await askForKey(sent !== "");
  }
}
