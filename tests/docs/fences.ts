/**
 * Code fences of the project's Markdown, and what their info strings ask for:
 *
 * - nothing: a module of its own, compiled, then run in Node;
 * - `continues`: the rest of the module that the fence before it begins;
 * - `file=NAME`: a file of the page's example, under that name; it runs where another one imports or opens it. Files of
 *   docs/guides/quick-start.md are there for every page;
 * - `run=browser`: the module runs in Chromium (a fence of HTML that is a `file` is opened there as well);
 * - `compile-only="why"`: it is compiled and not run.
 *
 * A line `console.log(…); // text` says what it prints, in the order of printing; `…` in the text stands for anything. So
 * does a line `await report(…); // text`: docs/guides/troubleshooting.md has that function.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

export interface Fence {
  /** Path of the Markdown file, relative to the root. */
  readonly page: string;
  /** Line of the opening ```, from 1. */
  readonly line: number;
  readonly language: string;
  readonly code: string;
  readonly attributes: ReadonlyMap<string, string>;
}

/** A module (or an HTML page) made of one fence or of several. */
export interface Snippet {
  readonly page: string;
  readonly line: number;
  readonly language: 'js' | 'ts' | 'html';
  readonly code: string;
  /** Where each line of `code` stands in the page, from 1. */
  readonly lines: readonly number[];
  readonly fileName: string;
  readonly isFile: boolean;
  readonly runsIn: 'node' | 'browser' | 'importer' | 'nothing';
  /** What it prints, line by line. */
  readonly expected: readonly string[];
}

const ATTRIBUTES = new Set(['continues', 'file', 'run', 'compile-only']);
const LANGUAGES = new Set(['js', 'ts', 'html']);

function parseAttributes(where: string, text: string): Map<string, string> {
  const attributes = new Map<string, string>();
  for (const [, name, quoted, plain] of text.matchAll(/([\w-]+)(?:=(?:"([^"]*)"|(\S+)))?/g)) {
    if (!ATTRIBUTES.has(name)) throw new Error(`${where}: no attribute ${name}`);
    attributes.set(name, quoted ?? plain ?? '');
  }
  return attributes;
}

/** All fences of a page, whatever their language. */
export function fencesOf(page: string, markdown: string): Fence[] {
  const fences: Fence[] = [];
  const lines = markdown.split('\n');
  for (let i = 0; i < lines.length; i++) {
    const opening = /^( *)```(\S*) *(.*)$/.exec(lines[i]);
    if (opening === null) continue;
    const [, indent, language, rest] = opening;
    const begin = i + 1;
    do i++;
    while (i < lines.length && lines[i].trimEnd() !== `${indent}\`\`\``);
    if (i === lines.length) throw new Error(`${page}:${begin}: a fence without an end`);
    const code = lines.slice(begin, i).map((line) => line.slice(indent.length));
    const attributes = LANGUAGES.has(language) ? parseAttributes(`${page}:${begin}`, rest) : new Map<string, string>();
    fences.push({ page, line: begin, language, code: code.join('\n'), attributes });
  }
  return fences;
}

/** What the code says that it prints. @throws where it says so behind a call of several lines, which would not be seen */
export function expectedOutput(code: string): string[] {
  const lines = code.split('\n');
  const unseen = lines.find((line) => /^\s*\); \/\/ /.test(line));
  if (unseen !== undefined) throw new Error(`a call whose output is told has to be one line: ${unseen}`);
  return lines
    .map((line) => /^\s*(?:[^/]*\s)?(?:console\.log|await report)\(.*\); \/\/ (.*)$/.exec(line)?.[1])
    .filter((text) => text !== undefined);
}

/** Whether a printed line is what was promised, `…` standing for anything. */
export function matches(line: string, promised: string): boolean {
  const pattern = promised
    .split('…')
    .map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'))
    .join('.*');
  return new RegExp(`^${pattern}$`).test(line);
}

function runsIn({ page, line, language, attributes }: Fence): Snippet['runsIn'] {
  if (attributes.has('compile-only')) {
    if (attributes.get('compile-only') === '') throw new Error(`${page}:${line}: compile-only needs a reason`);
    return 'nothing';
  }
  if (language === 'html' || attributes.get('run') === 'browser') return 'browser';
  if (attributes.has('run')) throw new Error(`${page}:${line}: run=${attributes.get('run')}`);
  return attributes.has('file') ? 'importer' : 'node';
}

/** The modules that a page's fences make. */
export function snippetsOf(page: string, markdown: string): Snippet[] {
  const snippets: Snippet[] = [];
  for (const fence of fencesOf(page, markdown)) {
    const { line, language, attributes } = fence;
    if (!LANGUAGES.has(language)) continue;
    const file = attributes.get('file');
    if (language === 'html' && file === undefined) continue;
    const own = fence.code.split('\n').map((_, i) => line + 1 + i);
    const before = snippets.at(-1);
    if (attributes.has('continues')) {
      if (before?.language !== language) throw new Error(`${page}:${line}: nothing to continue`);
      snippets[snippets.length - 1] = {
        ...before,
        code: `${before.code}\n${fence.code}`,
        lines: [...before.lines, ...own],
        expected: [...before.expected, ...expectedOutput(fence.code)],
      };
      continue;
    }
    snippets.push({
      page,
      line,
      language: language as Snippet['language'],
      code: fence.code,
      lines: own,
      fileName: file ?? `line-${line}.${language}`,
      isFile: file !== undefined,
      runsIn: runsIn(fence),
      expected: expectedOutput(fence.code),
    });
  }
  return snippets;
}

/** README.md and every page below docs/, relative to the root. */
export function pages(root: string): string[] {
  const below = readdirSync(join(root, 'docs'), { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.md'))
    .map((name) => `docs/${name}`)
    .sort();
  return ['README.md', 'CONTRIBUTING.md', ...below];
}

export function readPage(root: string, page: string): string {
  return readFileSync(join(root, page), 'utf8');
}
