/** What the address names besides the tab: `#runs/NAME` names a run. Empty if nothing is named. */
export const addressed = () => decodeURIComponent(location.hash.slice(1).split("/")[1] ?? "");

export const addressOf = (tab: string, name: string) => `#${tab}/${encodeURIComponent(name)}`;
