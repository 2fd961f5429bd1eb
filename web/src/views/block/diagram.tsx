/** The drawing of a block. Its boxes can be clicked; the list of parts beside it does the same for the keyboard. */
import { useEffect, useRef } from "preact/hooks";
import style from "./diagram.css?inline";

interface Props {
  svg: string;
  selected: string;
  onSelect: (name: string) => void;
}

export function Diagram({ svg, selected, onSelect }: Props) {
  const holder = useRef<HTMLDivElement>(null);
  useEffect(() => {
    // A shadow root, so that the style inside of the SVG stays there. The SVG is made by normscope's renderer, which
    // escapes every label.
    const root = holder.current!.shadowRoot ?? holder.current!.attachShadow({ mode: "open" });
    root.innerHTML = `${svg}<style>${style}</style>`;
    const click = (event: Event) => {
      const name = (event.target as Element).closest<SVGElement>("[data-module]")?.dataset.module;
      if (name !== undefined) onSelect(name);
    };
    root.addEventListener("click", click);
    return () => root.removeEventListener("click", click);
  }, [svg]);
  useEffect(() => {
    holder.current!.shadowRoot!.querySelectorAll<SVGElement>("[data-module]").forEach((box) => {
      box.classList.toggle("selected", box.dataset.module === selected);
    });
  }, [svg, selected]);
  return <div ref={holder} class="diagram scroll" />;
}
