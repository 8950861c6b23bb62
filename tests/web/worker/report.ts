/** What became of a test or a group of tests in the Worker. */
export interface Outcome {
  readonly name: string;
  readonly state: 'passed' | 'failed' | 'skipped';
  readonly errors: readonly { readonly name: string; readonly message: string; readonly stack: string }[];
  /** Of a group. */
  readonly children?: readonly Outcome[];
}
