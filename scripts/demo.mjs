#!/usr/bin/env node
// @ts-check
// Sets up, builds the package and serves the demo page.
import { join } from 'node:path';
import { parseArgs } from 'node:util';

import { must, nodeBin, root } from './lib/tools.mjs';

const usage = `usage: node scripts/demo.mjs [--port N | --build]

Installs what is missing, builds the package and serves web/demo; open the address that it prints. With --build it makes
a static site for any host instead, in build/demo.
`;

const { values } = parseArgs({
  options: {
    port: { type: 'string', default: '5173' },
    build: { type: 'boolean', default: false },
    help: { type: 'boolean', default: false },
  },
});
if (values.help) {
  console.log(usage);
} else {
  await must('node', ['scripts/setup.mjs', '--for', 'demo']);
  await must('node', ['scripts/build.mjs']);
  // From the demo's own directory: Vite finds its configuration and its files there.
  await must(nodeBin('vite'), values.build ? ['build'] : ['--port', values.port], { cwd: join(root, 'web/demo') });
}
