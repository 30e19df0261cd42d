// Landmarks and names that the administration's pages lack for screen readers.
addEventListener("load", () => {
  "use strict";
  const main = document.getElementById("main") ?? document.querySelector("#page > :first-child");
  main?.setAttribute("role", "main");
  document
    .querySelector("#nav-sidebar-apps .simplebar-content-wrapper")
    ?.setAttribute("aria-label", "Navigation");
});
