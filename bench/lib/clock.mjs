// @ts-check
// What samples are measured with.

/**
 * Milliseconds: in Node the processor time of this process, which leaves out the time in which others had the processor;
 * in browsers, which do not tell, the time that went by. On a machine with nothing else to do both say the same.
 * @type {() => number}
 */
export const now =
  typeof globalThis.process === 'object'
    ? () => {
        const { user, system } = process.cpuUsage();
        return (user + system) / 1000;
      }
    : () => performance.now();
