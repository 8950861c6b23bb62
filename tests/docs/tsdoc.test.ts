/** What the doc comments of the package's public symbols hold, and that their examples compile. */
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

import ts from 'typescript';
import { describe, expect, it } from 'vitest';

import { compile } from './compile.js';
import { fencesOf } from './fences.js';

const root = fileURLToPath(new URL('../..', import.meta.url));
const workspace = join(root, 'build', 'docs-tsdoc');
const entries = ['web/src/index.ts', 'web/src/store/index.ts'].map((name) => join(root, name));

/** What an example may use without saying where it is from. */
const surroundings = `
import {
  decode, loadNeedle3, Needle3Error, NEEDLE3, DecodeState, Mark, Needle3, WasmFloat32Array,
  type DecodeModel, type DecodeOptions, type DecodeResult, type DecodeStateOptions, type DecodeStream, type EngramConfig,
  type ErrorCode, type Float32Input, type KvView, type LoadOptions, type ModelConfig, type Precision, type Projection,
  type StopReason, type WasmSource,
} from 'needle3-wasm';
import { openSnapshotStore, type SnapshotInfo, type SnapshotStore } from 'needle3-wasm/store';
declare const needle3: Needle3;
declare const state: DecodeState;
declare const prefilled: DecodeState;
declare const model: DecodeModel;
declare const store: SnapshotStore;
declare const array: WasmFloat32Array;
declare const layer: number, token: number, site: number, n: number, attnOutDim: number, promptLength: number;
declare const q: Float32Array, k: Float32Array, v: Float32Array, query: Float32Array, out: Float32Array;
declare const rows: Float32Array, weights: Float32Array, logits: Float32Array;
declare const qTaps: Float32Array[], kTaps: Float32Array[], vTaps: Float32Array[], siteTaps: Float32Array[];
declare const keys: Float32Array[], values: Float32Array[];
declare const prompt: number[], question: number[];
declare const bytes: Uint8Array, weightsHash: Uint8Array;
declare const show: (token: number) => void;
`;

interface Documented {
  readonly name: string;
  /** Examples, each the code of one fence. */
  readonly examples: readonly string[];
}

function examplesOf(declarations: readonly ts.Node[]): string[] {
  const tags = declarations.flatMap((declaration) => ts.getJSDocTags(declaration));
  return tags
    .filter((tag) => tag.tagName.text === 'example')
    .flatMap((tag) => fencesOf('', ts.getTextOfJSDocComment(tag.comment) ?? ''))
    .map(({ code }) => code);
}

/** The exports, and the methods of exported classes and interfaces. */
function publicSymbols(): Documented[] {
  const program = ts.createProgram(entries, {
    target: ts.ScriptTarget.ES2022,
    module: ts.ModuleKind.NodeNext,
    moduleResolution: ts.ModuleResolutionKind.NodeNext,
    lib: ['lib.es2022.d.ts', 'lib.esnext.disposable.d.ts', 'lib.dom.d.ts', 'lib.dom.asynciterable.d.ts'],
    types: [],
  });
  const checker = program.getTypeChecker();
  const found: Documented[] = [];
  for (const entry of entries) {
    const module = checker.getSymbolAtLocation(program.getSourceFile(entry)!)!;
    for (const exported of checker.getExportsOfModule(module)) {
      const symbol = exported.flags & ts.SymbolFlags.Alias ? checker.getAliasedSymbol(exported) : exported;
      const declarations = symbol.declarations ?? [];
      const nodes = declarations.map((node) => (ts.isVariableDeclaration(node) ? node.parent.parent : node));
      found.push({ name: symbol.name, examples: examplesOf(nodes) });
      for (const declaration of declarations) {
        if (!ts.isClassDeclaration(declaration)) continue;
        const methods = declaration.members.filter(ts.isMethodDeclaration).filter((member) => {
          const isPrivate =
            ts.isPrivateIdentifier(member.name) || ts.getCombinedModifierFlags(member) & ts.ModifierFlags.Private;
          return !isPrivate;
        });
        for (const method of new Set(methods.map(({ name }) => name.getText()))) {
          const overloads = methods.filter(({ name }) => name.getText() === method);
          found.push({ name: `${symbol.name}.${method}`, examples: examplesOf(overloads) });
        }
      }
    }
  }
  return found;
}

const symbols = publicSymbols();

describe('doc comments', () => {
  it('have an example for every export and every method', () => {
    expect(symbols.length).toBeGreaterThan(40);
    expect(symbols.filter(({ examples }) => examples.length === 0).map(({ name }) => name)).toEqual([]);
  });

  it('have examples that compile, strict', () => {
    rmSync(workspace, { recursive: true, force: true });
    mkdirSync(workspace, { recursive: true });
    const files = symbols.flatMap(({ name, examples }, index) =>
      examples.map((code, i) => {
        const file = join(workspace, `${index}-${name}-${i}.ts`);
        // In a block of its own: an example may declare what the surroundings have.
        writeFileSync(file, `${surroundings}\nasync function example() {\n${code}\n}\nvoid example;\n`);
        return file;
      }),
    );
    const heard = [...compile(files, [])].flatMap(([file, complaints]) =>
      complaints.map(({ message }) => `${file.slice(workspace.length + 1)}: ${message}`),
    );
    expect(heard).toEqual([]);
  });
});
