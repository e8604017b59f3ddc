// What our pages do beyond plain HTML: times that tick, a live socket that morphs fragments in, a dialog, focus.
// Everything works without this file by ordinary links and forms. No inline code anywhere: the CSP forbids it.
(() => {
  "use strict";

  const words = JSON.parse(document.getElementById("words")?.textContent ?? "{}");
  const language = document.documentElement.lang || "en";

  // --- times: the same rules as workspaces/moments.py
  function span(seconds) {
    const whole = Math.max(0, Math.floor(seconds));
    if (whole < 60) return words.s.replace("{n}", whole);
    if (whole < 90 * 60) return words.min.replace("{n}", Math.floor(whole / 60));
    if (whole < 36 * 3600) return words.h.replace("{n}", Math.floor(whole / 3600));
    const days = Math.floor(whole / 86400);
    return (days === 1 ? words.day : words.days).replace("{n}", days);
  }

  function relative(at, now) {
    const seconds = (at - now) / 1000;
    if (Math.abs(seconds) < 1) return words.now;
    return seconds > 0 ? words.in.replace("{span}", span(seconds)) : words.ago.replace("{span}", span(-seconds));
  }

  function clock(at, now) {
    const two = (number) => String(number).padStart(2, "0");
    const time = `${two(at.getHours())}:${two(at.getMinutes())}`;
    if (Math.abs(at - now) < 18 * 3600 * 1000) return time;
    return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${time}`;
  }

  function say(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  function tick(root = document) {
    const now = new Date();
    for (const element of root.querySelectorAll("time[data-relative]")) say(element, relative(new Date(element.dateTime), now));
    for (const element of root.querySelectorAll("time[data-clock]")) {
      const at = new Date(element.dateTime);
      say(element, clock(at, now));
      element.title = new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "medium" }).format(at);
    }
  }

  // --- fragments: morphing keeps focus, open menus and scroll where they are
  function morph(target, html, how) {
    const states = new Map([...document.querySelectorAll("[data-state]")].map((card) => [card.id, card.dataset.state]));
    window.Idiomorph.morph(target, html, {
      morphStyle: how,
      callbacks: {
        beforeAttributeUpdated: (name, node) => !(name === "open" && node.matches("details, dialog")),
        beforeNodeMorphed: (old, next) => !(old.nodeType === 1 && next.nodeType === 1 && old.outerHTML === next.outerHTML),
      },
    });
    const root = how === "innerHTML" ? target : document.getElementById(target.id) ?? document;
    tick(document);
    window.htmx?.process(root === document ? document.body : root);
    announce(states);
    rescueFocus();
  }

  function announce(before) {
    const news = [];
    for (const card of document.querySelectorAll("[data-state]")) {
      const was = before.get(card.id);
      if (was !== undefined && was !== card.dataset.state) news.push(`${card.dataset.name}: ${card.dataset.state}`);
    }
    if (news.length) document.getElementById("announcer").textContent = news.join(". ");
  }

  // The button that was pressed may be gone with the state it belonged to: the keyboard stays on its card.
  let lastCard = null;
  document.addEventListener("focusin", (event) => { lastCard = event.target.closest?.("[data-state]")?.id ?? null; });
  function rescueFocus() {
    if (document.activeElement !== document.body || !lastCard) return;
    document.getElementById(lastCard)?.focus({ preventScroll: true });
  }

  // --- live socket
  let socket = null;
  let socketUrl = "";
  let failures = 0;
  let retry = 0;
  let heard = 0;

  function banner(visible) {
    const element = document.getElementById("connection");
    if (element) element.hidden = !visible;
    document.documentElement.dataset.connection = visible ? "off" : "on";
  }

  function wanted() {
    return document.querySelector("[data-live]")?.dataset.live ?? "";
  }

  function connect() {
    window.clearTimeout(retry);
    socketUrl = wanted();
    if (!socketUrl) return;
    if (!failures) document.documentElement.dataset.connection = "opening";
    const scheme = window.location.protocol === "https:" ? "wss:" : "ws:";
    const mine = new WebSocket(`${scheme}//${window.location.host}${socketUrl}`);
    socket = mine;
    heard = Date.now();
    mine.onmessage = (event) => {
      heard = Date.now();
      if (mine !== socket) return;
      // The list was searched or turned while this was on its way: it belongs to the list before.
      if (wanted() !== socketUrl) { reconnectIfMoved(); return; }
      failures = 0;
      banner(false);
      for (const patch of JSON.parse(event.data).patches ?? []) {
        const target = document.getElementById(patch.target);
        if (target) morph(target, patch.html, patch.how ?? "outerHTML");
      }
    };
    mine.onclose = (event) => {
      if (mine !== socket) return;
      if (event.code === 4401) { window.location.reload(); return; }
      if (event.code === 4404) { window.location.assign("/"); return; }
      failures += 1;
      banner(true);
      // A refused handshake looks like a dead server: after a few, ask whether the session still holds.
      if (failures % 4 === 0) askSession();
      retry = window.setTimeout(connect, Math.min(8000, 250 * 2 ** Math.min(failures, 5)) * (0.7 + Math.random() * 0.6));
    };
  }

  async function askSession() {
    try {
      const answer = await fetch("/session/", { credentials: "same-origin", redirect: "manual" });
      if (answer.status === 401) window.location.reload();
    } catch { /* the server is away: the next try will tell */ }
  }

  function reconnectIfMoved() {
    if (wanted() === socketUrl) return;
    const old = socket;
    socket = null;
    old?.close();
    failures = 0;
    connect();
  }

  window.setInterval(() => {
    tick();
    // The server is heard at least every 15 s; silence means a connection that died without saying so.
    if (socket && socket.readyState === WebSocket.OPEN && Date.now() - heard > 40000) socket.close();
  }, 1000);
  window.addEventListener("online", () => { if (!socket || socket.readyState > 1) connect(); });
  window.codehub = { dropSocket: () => socket?.close(), socketState: () => socket?.readyState ?? -1 };

  // --- forms sent by htmx: fragments that came over the socket carry no token, the cookie does
  document.addEventListener("htmx:configRequest", (event) => {
    const match = document.cookie.match(/(?:^|; )codehub_csrf=([^;]+)/);
    if (match) event.detail.headers["X-CSRFToken"] = decodeURIComponent(match[1]);
  });
  document.addEventListener("htmx:afterSettle", () => { tick(); reconnectIfMoved(); rescueFocus(); });
  for (const failure of ["htmx:responseError", "htmx:sendError"]) {
    document.addEventListener(failure, (event) => { if (event.detail.xhr?.status !== 0) window.location.reload(); });
  }

  // --- menus close on Escape and on a click elsewhere; links that have a dialog open it
  document.addEventListener("click", (event) => {
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      if (!menu.contains(event.target) || event.target.closest(".menu-list button, .menu-list a")) menu.open = false;
    }
    const opener = event.target.closest("[data-dialog]");
    const dialog = opener && document.getElementById(opener.dataset.dialog);
    if (dialog && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      dialog.showModal();
      dialog.querySelector("[autofocus], input[type=text]")?.focus();
    }
    if (event.target.closest("[data-close]")) {
      const open = event.target.closest("dialog");
      if (open) { event.preventDefault(); open.close(); }
    }
    const copy = event.target.closest("[data-copy]");
    if (copy) navigator.clipboard?.writeText(document.getElementById(copy.dataset.copy).textContent.trim());
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    const menu = document.querySelector("details.menu[open]");
    if (menu) { menu.open = false; menu.querySelector("summary").focus(); }
  });

  document.documentElement.classList.add("js");
  tick();
  connect();
})();
