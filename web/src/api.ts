// For its declaration of Symbol.dispose, which the declarations below need.
import './core/dispose.js';

export { WasmFloat32Array } from './core/arrays.js';
export { NEEDLE3, type EngramConfig, type ModelConfig } from './state/config.js';
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
} from './state/decode-state.js';
export {
  decode,
  type AbortSignalLike,
  type DecodeModel,
  type DecodeOptions,
  type DecodeResult,
  type DecodeStream,
  type StopReason,
} from './decode/decode.js';
export { Needle3Error, type ErrorCode } from './core/errors.js';
export { Needle3 } from './instance.js';
export type { LoadOptions, ResponseLike, UrlLike, WasmSource, WebAssemblyModule } from './load/load.js';
