import * as needle3Wasm from 'needle3-wasm';
import wasm from 'needle3-wasm/needle3.wasm';
import * as store from 'needle3-wasm/store';
import { post } from './shared/page.js';
import { session } from './shared/session.js';

post(session(needle3Wasm, store, 'worker', { wasm }));
