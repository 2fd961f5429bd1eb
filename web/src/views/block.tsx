export default function View() {
  return <h1>block</h1>;
}
