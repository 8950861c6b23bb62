// @ts-check
// One line that says how far things are: overwritten on a terminal, else printed when its first part changes.

export function progress() {
  const { stderr } = process;
  let last = '';
  return {
    /** @param {string} text  what goes on; after a comma, how far it is */
    show(text) {
      if (stderr.isTTY) {
        stderr.write(`\r\x1b[2K${text}`);
        return;
      }
      const [head] = text.split(',');
      if (head !== last) stderr.write(`${head}\n`);
      last = head;
    },
    clear() {
      if (stderr.isTTY) stderr.write('\r\x1b[2K');
    },
  };
}
