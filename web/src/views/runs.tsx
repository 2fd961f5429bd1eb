export default function View() {
  return <h1>runs</h1>;
}
