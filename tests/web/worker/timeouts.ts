/** Milliseconds before a test or a hook counts as hanging, everywhere: the slowest machine's debug build is allowed for. */
export const timeouts = { testTimeout: 120_000, hookTimeout: 120_000 };
