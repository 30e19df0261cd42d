// Landmarks and names that the administration's pages lack for screen readers.
addEventListener("load", () => {
  "use strict";
  const name = (element, text) => {
    element.removeAttribute("aria-labelledby");
    if (element.getAttribute("aria-label") !== text) element.setAttribute("aria-label", text);
  };
  const mend = () => {
    const main = document.getElementById("main") ?? document.querySelector("#page > :first-child");
    main?.setAttribute("role", "main");
    const menu = document.querySelector("#nav-sidebar-apps .simplebar-content-wrapper");
    if (menu) name(menu, "Navigation");
    // A choice with a search box is called by its field's name; what is chosen is its value.
    for (const box of document.querySelectorAll(".select2")) {
      const text = box.previousElementSibling?.labels?.[0]?.textContent.trim();
      const parts = "[role=combobox], [role=textbox], [role=searchbox]";
      if (text) box.querySelectorAll(parts).forEach((part) => name(part, text));
    }
    for (const hint of document.querySelectorAll("span.help-tooltip[aria-label]")) {
      hint.setAttribute("role", "img");
    }
  };
  mend();
  // Choices are drawn, and redrawn, after the page has loaded.
  new MutationObserver(mend).observe(document.body, { childList: true, subtree: true });
});
