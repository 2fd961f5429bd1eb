export default function View() {
  return <h1>scope</h1>;
}
