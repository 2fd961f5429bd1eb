/** The name of a module, which may be broken after its dots. */
import { Fragment } from "preact";

export function ModuleName({ name }: { name: string }) {
  const parts = name.split(/(?<=\.)/);
  return (
    <>
      {parts.map((part, i) => (
        <Fragment key={i}>
          {i > 0 && <wbr />}
          {part}
        </Fragment>
      ))}
    </>
  );
}
