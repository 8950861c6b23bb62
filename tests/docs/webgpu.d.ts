// TypeScript's DOM library has no WebGPU yet. What the guide uses of it:
interface GPUBuffer {
  mapAsync(mode: number): Promise<undefined>;
  getMappedRange(): ArrayBuffer;
  unmap(): void;
  destroy(): void;
}
interface GPUComputePassEncoder {
  setPipeline(pipeline: object): void;
  setBindGroup(index: number, group: object): void;
  dispatchWorkgroups(x: number): void;
  end(): void;
}
interface GPUCommandEncoder {
  beginComputePass(): GPUComputePassEncoder;
  copyBufferToBuffer(from: GPUBuffer, fromOffset: number, to: GPUBuffer, toOffset: number, bytes: number): void;
  finish(): object;
}
interface GPUComputePipeline {
  getBindGroupLayout(index: number): object;
}
interface GPUDevice {
  readonly queue: {
    submit(commands: readonly object[]): void;
    writeBuffer(buffer: GPUBuffer, offset: number, data: ArrayBufferView): void;
  };
  createBuffer(options: { size: number; usage: number }): GPUBuffer;
  createShaderModule(options: { code: string }): object;
  createComputePipeline(options: { layout: 'auto'; compute: { module: object } }): GPUComputePipeline;
  createBindGroup(options: {
    layout: object;
    entries: readonly { binding: number; resource: { buffer: GPUBuffer } }[];
  }): object;
  createCommandEncoder(): GPUCommandEncoder;
}
interface Navigator {
  readonly gpu?: { requestAdapter(): Promise<{ requestDevice(): Promise<GPUDevice> } | null> };
}
declare const GPUBufferUsage: { MAP_READ: number; COPY_SRC: number; COPY_DST: number; STORAGE: number };
declare const GPUMapMode: { READ: number };
