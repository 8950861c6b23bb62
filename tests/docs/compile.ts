/** Compiles snippets with TypeScript, strict, as they stand in the pages. */
import ts from 'typescript';

const common: ts.CompilerOptions = {
  target: ts.ScriptTarget.ES2022,
  module: ts.ModuleKind.NodeNext,
  moduleResolution: ts.ModuleResolutionKind.NodeNext,
  // What readers have: the DOM, Node's types, and `using`.
  lib: ['lib.es2022.d.ts', 'lib.esnext.disposable.d.ts', 'lib.dom.d.ts', 'lib.dom.iterable.d.ts'],
  // `?url` imports are Vite's.
  types: ['node', 'vite/client'],
  strict: true,
  noEmit: true,
  isolatedModules: true,
  moduleDetection: ts.ModuleDetectionKind.Force,
  skipLibCheck: true,
  allowJs: true,
  checkJs: true,
};

export interface Complaint {
  /** From 0. */
  readonly line: number;
  readonly message: string;
}

/**
 * What the compiler says of each file. JavaScript cannot say a parameter's type, so there, and there alone, an implicit
 * `any` passes.
 * @param declarations - paths of ambient declarations
 */
export function compile(files: readonly string[], declarations: readonly string[]): Map<string, Complaint[]> {
  const complaints = new Map<string, Complaint[]>(files.map((file) => [file, []]));
  const groups = [
    { names: files.filter((file) => file.endsWith('.ts')), options: common },
    { names: files.filter((file) => file.endsWith('.js')), options: { ...common, noImplicitAny: false } },
  ];
  for (const { names, options } of groups) {
    if (names.length === 0) continue;
    const program = ts.createProgram([...names, ...declarations], options);
    for (const problem of [...program.getGlobalDiagnostics(), ...program.getOptionsDiagnostics()]) {
      throw new Error(ts.flattenDiagnosticMessageText(problem.messageText, '\n'));
    }
    for (const name of names) {
      const source = program.getSourceFile(name);
      if (source === undefined) throw new Error(`${name} was not compiled`);
      const problems = [...program.getSyntacticDiagnostics(source), ...program.getSemanticDiagnostics(source)];
      complaints.set(
        name,
        problems.map(({ start, messageText }) => ({
          line: source.getLineAndCharacterOfPosition(start ?? 0).line,
          message: ts.flattenDiagnosticMessageText(messageText, '\n'),
        })),
      );
    }
  }
  return complaints;
}

/** The JavaScript of a TypeScript module. */
export function toJavaScript(code: string): string {
  return ts.transpileModule(code, { compilerOptions: { target: common.target, module: ts.ModuleKind.ESNext } })
    .outputText;
}
