// For its declaration of Symbol.dispose, which the declarations below need.
import './dispose.js';

export { WasmFloat32Array } from './arrays.js';
export { NEEDLE3, type EngramConfig, type ModelConfig } from './config.js';
export {
  DecodeState,
  type DecodeStateOptions,
  type Float32Input,
  type Float32KvView,
  type Int8KvView,
  type KvView,
  type Mark,
  type Precision,
  type Projection,
} from './decode-state.js';
export {
  decode,
  type AbortSignalLike,
  type DecodeModel,
  type DecodeOptions,
  type DecodeResult,
  type DecodeStream,
  type StopReason,
} from './decode.js';
export { Needle3Error, type ErrorCode } from './errors.js';
export { Needle3 } from './instance.js';
export type { LoadOptions, ResponseLike, UrlLike, WasmSource, WebAssemblyModule } from './load.js';
