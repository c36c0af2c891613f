// Light or dark as the reader chose before, set before anything is drawn.
try {
  const chosen = localStorage.getItem("motet-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch { /* storage is switched off */ }
