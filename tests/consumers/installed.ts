import { cp, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { capture, root } from '../../scripts/lib/tools.mjs';

const apps = fileURLToPath(new URL('./apps', import.meta.url));

/** Runs a program to its end. @throws with what it printed, where it fails */
export async function output(command: string, args: readonly string[], cwd: string): Promise<string> {
  const { code, output: text } = await capture(command, args, { cwd });
  if (code !== 0) throw new Error(`${[command, ...args].join(' ')} ended with ${code}:\n${text}`);
  return text;
}

/** The package as it would be published, installed into a project outside the source tree. */
export class Installed {
  private constructor(
    private readonly directory: string,
    /** Path of what `npm pack` made. */
    readonly tarball: string,
    /** What is in it, sorted. */
    readonly files: readonly string[],
  ) {}

  /** Packs dist/ and installs the tarball, without a network. */
  static async pack(): Promise<Installed> {
    const directory = await mkdtemp(join(tmpdir(), 'needle3-consumers-'));
    const text = await output('npm', ['pack', '--json', '--silent', '--pack-destination', directory], root);
    const [packed] = JSON.parse(text) as [{ filename: string; files: { path: string }[] }];
    const tarball = join(directory, packed.filename);
    const project = join(directory, 'installed');
    await mkdir(project);
    await writeFile(join(project, 'package.json'), '{ "private": true, "type": "module" }\n');
    await output('npm', ['install', '--offline', '--no-audit', '--no-fund', tarball], project);
    return new Installed(directory, tarball, packed.files.map(({ path }) => path).sort());
  }

  /** Path of node_modules with the package alone in it. */
  get nodeModules(): string {
    return join(this.directory, 'installed', 'node_modules');
  }

  /** A project of its own with the package installed, `app` (a folder of apps/, or a path) and what apps share. */
  async project(name: string, app: string): Promise<string> {
    const project = join(this.directory, name);
    await cp(join(this.directory, 'installed'), project, { recursive: true });
    await cp(join(apps, 'shared'), join(project, 'shared'), { recursive: true });
    await cp(join(apps, app), project, { recursive: true });
    return project;
  }

  remove(): Promise<void> {
    return rm(this.directory, { recursive: true });
  }
}
