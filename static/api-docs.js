// The browsable API: reads the schema with the session, and sends the CSRF token with what is tried out.
(() => {
  "use strict";
  const target = document.getElementById("swagger-ui");
  const csrf = () => (document.cookie.match(/(?:^|; )codehub_csrf=([^;]+)/) || [])[1] || "";
  window.SwaggerUIBundle({
    url: target.dataset.schema,
    domNode: target,
    deepLinking: true,
    validatorUrl: null,
    requestInterceptor: (request) => {
      if (!["GET", "HEAD"].includes((request.method || "GET").toUpperCase())) {
        request.headers["X-CSRFToken"] = csrf();
      }
      return request;
    },
  });
})();
