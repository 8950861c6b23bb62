// @ts-check
// The works of bench/works as a native program that is asked for one run at a time.
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';

/**
 * @param {string} program
 * @returns {{ create: (spec: string) => Promise<import('./wasm.mjs').PreparedWork>, close: () => void }}
 */
export function openNativeWorks(program) {
  const child = spawn(program, { stdio: ['pipe', 'pipe', 'inherit'] });
  const replies = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  /** @param {string} command */
  const ask = async (command) => {
    child.stdin.write(`${command}\n`);
    const { value, done } = await replies.next();
    if (done) throw new Error(`${program} ended at: ${command}`);
    const reply = JSON.parse(value);
    if (reply.error !== undefined) throw new Error(`${reply.error}: ${command}`);
    return reply;
  };
  return {
    create: async (spec) => {
      const { id, output } = await ask(`create ${spec}`);
      return {
        run: async (iterations) => (await ask(`run ${id} ${iterations}`)).ms,
        output: Float32Array.from(output),
        close: () => ask(`destroy ${id}`),
      };
    },
    close: () => child.stdin.end(),
  };
}
