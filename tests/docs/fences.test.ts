import { describe, expect, it } from 'vitest';

import { expectedOutput, matches, snippetsOf } from './fences.js';

const tick = '```';

describe('code fences', () => {
  it('become modules, and those that continue one become a part of it', () => {
    const markdown = `a\n${tick}ts\nconst a = 1;\n${tick}\nb\n${tick}ts continues\nconsole.log(a); // 1\n${tick}\n${tick}sh\nls\n${tick}\n`;
    const [snippet, ...others] = snippetsOf('a.md', markdown);
    expect(others).toEqual([]);
    expect(snippet.code).toBe('const a = 1;\nconsole.log(a); // 1');
    expect(snippet.lines).toEqual([3, 7]);
    expect(snippet.expected).toEqual(['1']);
    expect(snippet.runsIn).toBe('node');
  });

  it('are refused with an attribute that nobody knows, with nothing to continue, or without an end', () => {
    expect(() => snippetsOf('a.md', `${tick}ts norun\n${tick}`)).toThrow('a.md:1: no attribute norun');
    expect(() => snippetsOf('a.md', `${tick}ts continues\n${tick}`)).toThrow('nothing to continue');
    expect(() => snippetsOf('a.md', `${tick}ts\n`)).toThrow('without an end');
  });

  it('are left unrun for a reason only', () => {
    expect(snippetsOf('a.md', `${tick}ts compile-only="it needs a GPU"\n${tick}`)[0].runsIn).toBe('nothing');
    expect(() => snippetsOf('a.md', `${tick}ts compile-only\n${tick}`)).toThrow('needs a reason');
  });

  it('promise what the comments behind their console.log say', () => {
    const code =
      "console.log(f('//')); // one\n// console.log(x); // no\nif (a) console.log(b);\n  console.log(c); // two …";
    expect(expectedOutput(code)).toEqual(['one', 'two …']);
    expect(() => expectedOutput('console.log(\n  a,\n); // a')).toThrow('one line');
    expect(matches('two (3)', 'two …')).toBe(true);
    expect(matches('two', 'twos')).toBe(false);
    expect(matches('a two (3)', 'two …')).toBe(false);
  });
});
