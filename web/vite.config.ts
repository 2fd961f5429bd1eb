import { defineConfig } from "vite";

/** The studio: a page with one chunk per tab. `--mode export` builds the page of an exported model as one file. */
export default defineConfig(({ mode }) => ({
  base: "./",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/normscope/studio/static",
    emptyOutDir: mode !== "export",
    target: "es2022",
    // The wheel contains other people's code in the bundle: their licenses go with it.
    license: { fileName: mode === "export" ? "licenses-export.md" : "licenses.md" },
    chunkSizeWarningLimit: 900,
    rolldownOptions: { input: mode === "export" ? "export.html" : "index.html" },
  },
}));
