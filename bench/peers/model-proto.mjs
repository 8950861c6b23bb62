// Writes ONNX models of a few operators: just the fields of onnx.proto that they need, in protobuf's wire format.

/** Data types of TensorProto. */
export const dataType = /** @type {const} */ ({ float: 1, int8: 3, int32: 6, int64: 7 });

/**
 * @typedef {{ name: string, type: number, dims: readonly number[] }} Value
 * @typedef {Value & { data: Float32Array | Int8Array | Int32Array | BigInt64Array }} Initializer
 * @typedef {{ op: string, domain?: string, inputs: readonly string[], outputs: readonly string[],
 *             attributes?: Record<string, Attribute> }} Node
 * @typedef {{ int: number } | { float: number } | { string: string } | { ints: readonly number[] }} Attribute
 */

/** @param {number | bigint} value */
function varint(value) {
  const bytes = [];
  let rest = BigInt.asUintN(64, BigInt(value));
  while (rest >= 0x80n) {
    bytes.push(Number(rest & 0x7fn) | 0x80);
    rest >>= 7n;
  }
  bytes.push(Number(rest));
  return Uint8Array.from(bytes);
}

/** @param {readonly Uint8Array[]} parts */
function concat(parts) {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

const wire = { varint: 0, bytes: 2, fixed32: 5 };
/** @param {number} field @param {number} type */
const tag = (field, type) => varint((field << 3) | type);
/** @param {number} field @param {number} value */
const integer = (field, value) => concat([tag(field, wire.varint), varint(value)]);
/** @param {number} field @param {number} value */
const float = (field, value) => concat([tag(field, wire.fixed32), new Uint8Array(Float32Array.of(value).buffer)]);
/** @param {number} field @param {Uint8Array} content */
const bytes = (field, content) => concat([tag(field, wire.bytes), varint(content.length), content]);
/** @param {number} field @param {string} text */
const string = (field, text) => bytes(field, new TextEncoder().encode(text));
/** @param {number} field @param {...Uint8Array} content */
const message = (field, ...content) => bytes(field, concat(content));

/** AttributeProto: name 1, f 2, i 3, s 4, ints 8, type 20. @param {string} name @param {Attribute} value */
function attribute(name, value) {
  if ('float' in value) return message(5, string(1, name), float(2, value.float), integer(20, 1));
  if ('int' in value) return message(5, string(1, name), integer(3, value.int), integer(20, 2));
  if ('string' in value) return message(5, string(1, name), string(4, value.string), integer(20, 3));
  return message(5, string(1, name), ...value.ints.map((n) => integer(8, n)), integer(20, 7));
}

/** NodeProto: input 1, output 2, op_type 4, attribute 5, domain 7. @param {Node} node */
function encodeNode({ op, domain, inputs, outputs, attributes = {} }) {
  return message(
    1,
    ...inputs.map((name) => string(1, name)),
    ...outputs.map((name) => string(2, name)),
    string(4, op),
    ...Object.entries(attributes).map(([name, value]) => attribute(name, value)),
    ...(domain === undefined ? [] : [string(7, domain)]),
  );
}

/** ValueInfoProto: name 1, type 2 { tensor_type 1 { elem_type 1, shape 2 { dim 1 { dim_value 1 } } } }. */
function encodeValue(/** @type {number} */ field, /** @type {Value} */ { name, type, dims }) {
  const shape = message(2, ...dims.map((dim) => message(1, integer(1, dim))));
  return message(field, string(1, name), message(2, message(1, integer(1, type), shape)));
}

/** TensorProto: dims 1, data_type 2, name 8, raw_data 9. @param {Initializer} initializer */
function encodeInitializer({ name, type, dims, data }) {
  const raw = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  return message(5, ...dims.map((dim) => integer(1, dim)), integer(2, type), string(8, name), bytes(9, raw));
}

/**
 * ModelProto: ir_version 1, graph 7 { node 1, name 2, initializer 5, input 11, output 12 }, opset_import 8.
 * @param {{ nodes: readonly Node[], inputs: readonly Value[], outputs: readonly Value[], initializers?: readonly Initializer[] }} graph
 */
export function encodeModel({ nodes, inputs, outputs, initializers = [] }) {
  return concat([
    integer(1, 10),
    message(
      7,
      ...nodes.map(encodeNode),
      string(2, 'attention'),
      ...initializers.map(encodeInitializer),
      ...inputs.map((value) => encodeValue(11, value)),
      ...outputs.map((value) => encodeValue(12, value)),
    ),
    message(8, string(1, ''), integer(2, 23)),
    message(8, string(1, 'com.microsoft'), integer(2, 1)),
  ]);
}
