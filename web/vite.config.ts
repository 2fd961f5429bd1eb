import { defineConfig, type Plugin } from "vite";

/** Put the script, the styles and the licenses of others' code into the page, and forbid it everything else. */
function singleFile(): Plugin {
  const sha256 = async (text: string) => {
    const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
    return `'sha256-${btoa(String.fromCharCode(...new Uint8Array(digest)))}'`;
  };
  return {
    name: "single-file",
    generateBundle: {
      order: "post", // after Vite's list of licenses
      async handler(_, bundle) {
        const files = Object.values(bundle);
        const page = files.find((file) => file.fileName === "export.html");
        const scripts = files.filter((file) => file.type === "chunk").map((chunk) => chunk.code);
        const text = (end: string) =>
          files.map((file) => (file.type === "asset" && file.fileName.endsWith(end) ? String(file.source) : "")).join("");
        if (page?.type !== "asset" || scripts.length !== 1) throw new Error("expected one page with one script");
        const script = scripts[0]!.replaceAll("</script", "<\\/script").replaceAll("<!--", "<\\!--");
        const style = text(".css");
        const allowed = `script-src ${await sha256(script)}; style-src ${await sha256(style)}; img-src data:`;
        const policy = `default-src 'none'; ${allowed}; base-uri 'none'; form-action 'none'`;
        const licenses = text(".md").replaceAll("<", "&lt;");
        const data = (id: string, content: string) => `<script type="text/plain" id="${id}">${content}</script>`;
        // Replaced by functions, because "$&" in a string would be special.
        page.source = String(page.source)
          .replace(/<script type="module"[^>]*src=[^>]*><\/script>\s*/, () => "")
          .replace(/<link rel="stylesheet"[^>]*>\s*/, () => "")
          .replace("<title>", () => `<meta http-equiv="Content-Security-Policy" content="${policy}" />\n    <title>`)
          .replace("</head>", () => `<style>${style}</style>\n  </head>`)
          .replace("</body>", () => `${data("licenses", licenses)}\n    <script type="module">${script}</script>\n  </body>`);
        for (const file of files) if (file !== page) delete bundle[file.fileName];
      },
    },
  };
}

/** The studio: a page with one chunk per tab. `--mode export` builds the page of an exported model as one file. */
export default defineConfig(({ mode }) => ({
  base: "./",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  plugins: mode === "export" ? [singleFile()] : [],
  build: {
    outDir: "../src/normscope/studio/static",
    emptyOutDir: mode !== "export",
    target: "es2022",
    // The wheel contains other people's code in the bundle: their licenses go with it.
    license: { fileName: mode === "export" ? "licenses-export.md" : "licenses.md" },
    modulePreload: mode !== "export",
    chunkSizeWarningLimit: 900,
    rolldownOptions: { input: mode === "export" ? "export.html" : "index.html" },
  },
}));
