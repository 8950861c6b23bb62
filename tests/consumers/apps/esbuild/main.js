import * as needle3Wasm from 'needle3-wasm';
import wasm from 'needle3-wasm/needle3.wasm';
import * as store from 'needle3-wasm/store';
import { outcomeOf, show } from './shared/page.js';
import { session } from './shared/session.js';

show('page', session(needle3Wasm, store, 'page', { wasm }));
show('worker', outcomeOf(new Worker(new URL('./worker.js', import.meta.url), { type: 'module' })));
