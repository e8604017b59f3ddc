// The waiting page: asks how the workspace is, shows it, and opens the workspace when it is ready. Without this file the page
// reloads itself instead.
"use strict";
(() => {
  const panel = document.querySelector("[data-wait]");
  if (!panel) return;
  const part = (name) => panel.querySelector(`[data-${name}]`);
  const began = performance.now();

  function show(state) {
    if (state.label) part("label").textContent = state.label;
    const bar = part("progress");
    if (state.progress && state.progress.total) {
      bar.max = state.progress.total;
      bar.value = state.progress.done;
    } else {
      bar.removeAttribute("value");
    }
    part("detail").textContent = state.progress ? state.progress.detail : "";
  }

  async function ask() {
    // Most starts take a few seconds: those who wait for one should not wait for us.
    const waited = performance.now() - began;
    let pause = waited < 8000 ? 100 : waited < 30000 ? 500 : 2000;
    try {
      const answer = await fetch(panel.dataset.status, { headers: { Accept: "application/json" }, cache: "no-store" });
      if (answer.status === 401 || answer.status === 404) {
        location.replace(panel.dataset.next);
        return;
      }
      if (answer.ok) {
        const state = await answer.json();
        show(state);
        // Settled without running (stopped, archived, in error): the reloaded page says what can be done.
        if (state.ready || state.settled) {
          location.replace(panel.dataset.next);
          return;
        }
      }
    } catch {
      pause = 3000;
    }
    setTimeout(ask, pause);
  }

  setTimeout(ask, 300);
})();
