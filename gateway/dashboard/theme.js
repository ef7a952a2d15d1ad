// Sets the theme that the user chose before anything is painted; without a choice the system's theme applies.
try {
  const theme = localStorage.getItem("millrace.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage is switched off: the system's theme applies.
}
