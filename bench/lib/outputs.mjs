// @ts-check
// Contestants are compared by what they compute before they are timed: a fast wrong answer is no result.

/**
 * @param {string} id
 * @param {readonly { name: string, work: { output: Float32Array } }[]} contestants  the first is the reference
 * @param {number} tolerance  of the largest magnitude in the reference's output
 */
export function requireAgreement(id, contestants, tolerance) {
  const [reference, ...others] = contestants;
  const expected = reference.work.output;
  const magnitude = expected.reduce((largest, value) => Math.max(largest, Math.abs(value)), 0);
  for (const { name, work } of others) {
    const { output } = work;
    if (output.length !== expected.length) throw new Error(`${id}: ${name} gives ${output.length} values`);
    // A native build of the reference: the same source gives the same bits.
    const allowed = name.startsWith(`${reference.name} `) ? 0 : tolerance * magnitude;
    for (const [i, value] of output.entries()) {
      if (!(Math.abs(value - expected[i]) <= allowed)) {
        throw new Error(
          `${id}: element ${i} is ${value} in ${name}, ${expected[i]} in ${reference.name}; allowed: ${allowed}`,
        );
      }
    }
  }
}
