/** In narrow windows, what wide ones show side by side is one below the other: there, what was chosen has to be brought into view. */
export const isNarrow = () => matchMedia("(max-width: 900px)").matches;

/** Scroll to what the user asked for, unless it is next to what they look at. */
export function bringIntoView(element: Element | null | undefined): void {
  if (isNarrow()) element?.scrollIntoView();
}
