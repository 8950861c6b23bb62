// Import maps do not reach into Workers: addresses instead of names.
import * as needle3Wasm from './node_modules/needle3-wasm/dist/index.js';
import * as store from './node_modules/needle3-wasm/dist/store/index.js';
import { post } from './shared/page.js';
import { session } from './shared/session.js';

post(session(needle3Wasm, store, 'worker'));
