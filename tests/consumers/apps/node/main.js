import { fileURLToPath } from 'node:url';
import * as needle3Wasm from 'needle3-wasm';
import * as store from 'needle3-wasm/store';
import { session } from './shared/session.js';

console.log(JSON.stringify(await session(needle3Wasm, store, fileURLToPath(new URL('./kept', import.meta.url)))));
