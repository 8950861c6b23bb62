/** Types of the glue that Emscripten writes to dist/needle3.js. */
import type { CoreFactory } from './core/module.js';

declare const createCore: CoreFactory;
export default createCore;
