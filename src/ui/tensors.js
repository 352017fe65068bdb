/* SPDX-License-Identifier: Apache-2.0 */
/* tensors.js: the safetensors format. A tensor is {dtype, shape, bytes}; its bytes are a
 * view of the file, and are copied only where a number cannot be read in place. */

const DTYPE_BYTES = { F64: 8, F32: 4, F16: 2, BF16: 2, I64: 8, I32: 4 };

const isTensor = (value) => value !== null && typeof value === "object" && "dtype" in value;

/* Returns the tensors of a reply of the server. */
function readSafetensors(buffer) {
  const start = 8 + Number(new DataView(buffer).getBigUint64(0, true)), tensors = {};
  const { __metadata__, ...entries } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, start - 8)));
  for (const [name, { dtype, shape, data_offsets: [begin, end] }] of Object.entries(entries))
    tensors[name] = { dtype, shape, bytes: new Uint8Array(buffer, start + begin, end - begin) };
  return tensors;
}

/* Returns the tensor of an .npy file of NumPy. Throws an Error that says what is wrong. */
function readNpy(buffer) {
  const view = new DataView(buffer), isLong = view.getUint8(6) > 1; /* by the version of the format */
  const end = isLong ? 12 + view.getUint32(8, true) : 10 + view.getUint16(8, true);
  const header = new TextDecoder("latin1").decode(buffer.slice(8, end)), bytes = new Uint8Array(buffer.slice(end));
  const read = (pattern) => header.match(pattern)?.[1] ?? "";
  const type = read(/'descr': '([^']*)'/), dtype = { "<f4": "F32", "<f8": "F64", "<f2": "F16" }[type];
  if (!dtype)
    throw new Error(`its numbers are ${type || "objects"}; save x.astype('float32')`);
  if (read(/'fortran_order': (\w+)/) !== "False")
    throw new Error("its columns are stored one after the other; save np.ascontiguousarray(x)");
  const shape = (read(/'shape': \(([^)]*)\)/).match(/\d+/g) ?? []).map(Number);
  if (shape.reduce((x, y) => x * y, DTYPE_BYTES[dtype]) !== bytes.length)
    throw new Error(`it has ${formatBytes(bytes.length)} of numbers, which is not shape (${shape.join(", ")})`);
  return { dtype, shape, bytes };
}

/* Returns the file with these tensors, each at a multiple of 8 bytes. */
function writeSafetensors(metadata, tensors) {
  const header = { __metadata__: metadata };
  const names = Object.keys(tensors).sort(
    (a, b) => DTYPE_BYTES[tensors[b].dtype] - DTYPE_BYTES[tensors[a].dtype]);
  let size = 0;
  for (const name of names) {
    const { dtype, shape, bytes } = tensors[name];
    header[name] = { dtype, shape, data_offsets: [size, size + bytes.length] };
    size += bytes.length;
  }

  let text = new TextEncoder().encode(JSON.stringify(header));
  const padded = new Uint8Array(Math.ceil(text.length / 8) * 8).fill(0x20);
  padded.set(text);
  text = padded;
  const file = new Uint8Array(8 + text.length + size);
  new DataView(file.buffer).setBigUint64(0, BigInt(text.length), true);
  file.set(text, 8);
  for (const name of names)
    file.set(tensors[name].bytes, 8 + text.length + header[name].data_offsets[0]);
  return file;
}

function makeTensor(dtype, shape, numbers) {
  const array = dtype === "F32" ? Float32Array.from(numbers) : Float64Array.from(numbers);
  return { dtype, shape, bytes: new Uint8Array(array.buffer) };
}

/* The value of a float16 (IEEE 754 binary16). */
function halfToNumber(bits) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 0)
    return sign * fraction * 2 ** -24;
  if (exponent === 31)
    return fraction ? NaN : sign * Infinity;
  return sign * (1024 + fraction) * 2 ** (exponent - 25);
}

function readNumber(view, at, dtype) {
  switch (dtype) {
    case "F64": return view.getFloat64(at, true);
    case "F32": return view.getFloat32(at, true);
    case "I32": return view.getInt32(at, true);
    case "I64": return Number(view.getBigInt64(at, true));
    case "F16": return halfToNumber(view.getUint16(at, true));
    default: { /* BF16 is the upper half of a float32 */
      const word = new DataView(new ArrayBuffer(4));
      word.setUint16(0, view.getUint16(at, true));
      return word.getFloat32(0);
    }
  }
}

/* The numbers of a tensor: a view where float32 is aligned, else a copy. */
function numbersOf({ dtype, bytes }) {
  if (dtype === "F32" && bytes.byteOffset % 4 === 0)
    return new Float32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);
  const width = DTYPE_BYTES[dtype];
  if (width === undefined)
    throw new Error(`elements of type ${dtype} cannot be read`);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const numbers = new Float64Array(bytes.length / width);
  for (let i = 0; i < numbers.length; i++)
    numbers[i] = readNumber(view, i * width, dtype);
  return numbers;
}
