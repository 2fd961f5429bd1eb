/** The table of runs. */
import { formatBytes, formatCount } from "../../components/format";
import { locale, t } from "../../i18n";
import type { Job, RunList, RunSummary } from "./types";

interface Props {
  list: RunList | null;
  open: string | null;
  compared: string[];
  /** How many can be compared at once. */
  most: number;
  onOpen: (name: string) => void;
  onCompare: (name: string, on: boolean) => void;
}

export function RunTable({ list, open, compared, most, onOpen, onCompare }: Props) {
  if (!list) return <p class="faint run-table">{t("shell.loading")}</p>;
  if (!list.runs.length && !list.starting.length && !list.damaged.length) return <p class="run-table">{t("runs.none")}</p>;
  return (
    <div class="scroll run-table">
      <table>
        <thead>
          <tr>
            <th scope="col">{t("runs.compare")}</th>
            <th scope="col">{t("runs.name")}</th>
            <th scope="col">{t("runs.status")}</th>
            <th scope="col" class="number">{t("runs.steps")}</th>
            <th scope="col" class="number">{t("runs.best")}</th>
            <th scope="col" class="minor">{t("runs.size")}</th>
            <th scope="col" class="number minor">{t("runs.disk")}</th>
            <th scope="col" class="minor">{t("runs.changed")}</th>
          </tr>
        </thead>
        <tbody>
          {list.starting.map((job) => (
            <tr key={job.name}>
              <td />
              <td><NameButton name={job.name} open={open} onOpen={onOpen} /></td>
              <td><StartingStatus job={job} /></td>
              <td colSpan={5} />
            </tr>
          ))}
          {list.runs.map((run) => (
            <tr key={run.name}>
              <td>
                <input
                  type="checkbox"
                  aria-label={t("runs.compare_run", { name: run.name })}
                  checked={open === run.name || compared.includes(run.name)}
                  disabled={open === run.name || (compared.length >= most - 1 && !compared.includes(run.name))}
                  onChange={(event) => onCompare(run.name, event.currentTarget.checked)}
                />
              </td>
              <td><NameButton name={run.name} open={open} onOpen={onOpen} /></td>
              <td><Status run={run} /></td>
              <td class="number">{run.step ?? 0} / {run.steps}</td>
              <td class="number">{run.best_loss?.toFixed(4) ?? "–"}</td>
              <td class="minor">{t("runs.size_of", { depth: run.depth, width: run.width, parameters: formatCount(run.parameters) })}</td>
              <td class="number minor">{formatBytes(run.bytes)}</td>
              <td class="minor">{new Date(run.modified).toLocaleString(locale(), { dateStyle: "short", timeStyle: "short" })}</td>
            </tr>
          ))}
          {list.damaged.map((run) => (
            <tr key={run.name}>
              <td />
              <td>{run.name}</td>
              <td class="bad">{t("runs.status.damaged")}</td>
              <td colSpan={5} class="wrap">{run.message}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function NameButton({ name, open, onOpen }: { name: string; open: string | null; onOpen: (name: string) => void }) {
  return (
    <button type="button" class="link" aria-current={open === name ? "true" : undefined} onClick={() => onOpen(name)}>
      {name}
    </button>
  );
}

/** The status of a run that has no folder yet: its process is starting, or ended before it made one. */
export function StartingStatus({ job }: { job: Job }) {
  const status = job.status !== "running" ? job.status : job.stopping ? "stopping" : "starting";
  return <span class={`status ${status}`}>{t(`runs.status.${status}`)}</span>;
}

export function Status({ run }: { run: RunSummary }) {
  const failed = run.status !== "training" && run.job?.status === "failed";
  const status = failed ? "failed" : run.status === "training" && run.job?.stopping && run.job.status === "running" ? "stopping" : run.status;
  return <span class={`status ${status}`}>{t(`runs.status.${status}`)}</span>;
}
