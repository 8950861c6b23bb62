/** How the page writes numbers: its language is English. */
export const numbers = new Intl.NumberFormat('en');

function isLanguage(tag: string): boolean {
  try {
    new Intl.Locale(tag);
    return true;
  } catch {
    return false;
  }
}

// WebKitGTK names the locale "C" as its language, which is no language tag. uPlot makes a number format of whatever the
// browser names, as it is imported, and would take the page down with it.
if (!isLanguage(navigator.language)) Object.defineProperty(navigator, 'language', { value: 'en' });
