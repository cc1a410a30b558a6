// Draws window.DASHBOARD with the answers in window.ANSWERS by Grafana's own components: what Grafana would show, as far
// as its libraries go. Heights and widths are those of the dashboard's grid.
import {
  createTheme, dateTime, FieldType, getDisplayProcessor, getFieldDisplayName, reduceField, standardTransformers,
  standardTransformersRegistry, ThemeContext, toDataFrame, transformDataFrame,
} from '@grafana/data';
import { initPluginTranslations } from '@grafana/i18n';
import { BigValue, GlobalStyles, PanelChrome, TimeSeries } from '@grafana/ui';
import { useEffect, useState } from 'react';
import { createRoot } from 'react-dom/client';

const theme = createTheme({ colors: { mode: 'dark' } });
const { DASHBOARD, ANSWERS, RANGE, CHOSEN } = window as any;
const WIDTH = 1440, CELL = 36, GAP = 8, COLUMN = (WIDTH - 16) / 24;
const range = { from: dateTime(RANGE.from), to: dateTime(RANGE.to), raw: { from: 'now-1h', to: 'now' } };
const drawn: Record<string, number> = {};

const { organizeFieldsTransformer, groupingToMatrixTransformer } = standardTransformers;
standardTransformersRegistry.setInit(() =>
  [organizeFieldsTransformer, groupingToMatrixTransformer].map((one: any) => ({ id: one.id, name: one.name, transformation: async () => one, editor: () => null })) as any
);

function named(template: string, labels: Record<string, string>): string {
  if (!template) return Object.entries(labels).filter(([k]) => k !== '__name__').map(([k, v]) => `${k}=${v}`).join(' ');
  return template.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => labels[label] ?? '').trim();
}

function dressed(frame: any, panel: any, offset = 0) {
  frame.fields.forEach((field: any, place: number) => {
    const { defaults } = panel.fieldConfig;
    const numeric = field.type === FieldType.number;
    field.config = {
      ...(numeric ? defaults : { custom: defaults.custom }), ...field.config,
      color: panel.type === 'timeseries' ? { mode: 'palette-classic' } : { mode: 'thresholds' },
    };
    field.state = { seriesIndex: offset + Math.max(0, place - 1) };
    field.display = getDisplayProcessor({ field, theme, timeZone: 'utc' });
  });
  return frame;
}

function series(panel: any): any[] {
  return panel.targets.flatMap((target: any) => ANSWERS[`${panel.id}${target.refId}`].map((one: any) => [target, one]))
    .map(([target, one]: any, place: number) => dressed(toDataFrame({
      refId: target.refId,
      fields: [
        { name: 'Time', type: FieldType.time, values: one.values.map((v: any) => v[0] * 1000) },
        {
          name: 'Value', type: FieldType.number, labels: one.metric,
          values: one.values.map((v: any) => (v[1] === 'NaN' ? null : Number(v[1]))),
          config: { displayNameFromDS: named(target.legendFormat, one.metric) },
        },
      ],
    }), panel, place));
}

const Empty = ({ panel }: any) => (
  <div style={{ height: '100%', display: 'grid', placeItems: 'center', color: theme.colors.text.secondary }}>
    {panel.fieldConfig.defaults.noValue}
  </div>
);

function Lines({ panel, width, height }: any) {
  const frames = series(panel);
  drawn[panel.title] = frames.length;
  if (!frames.length) return <Empty panel={panel} />;
  for (const frame of frames) {
    const field = frame.fields[1];
    field.config.custom = { ...field.config.custom, axisBorderShow: false, spanNulls: true };
    field.state.calcs = undefined;
  }
  const legend = { showLegend: true, ...panel.options.legend } as any;
  return (
    <TimeSeries frames={frames} width={width} height={height} timeRange={range as any} timeZone="utc" legend={legend} />
  );
}

function Stat({ panel, width, height }: any) {
  const frames = series(panel);
  const field = frames[0]?.fields[1];
  drawn[panel.title] = frames.length;
  const processor = getDisplayProcessor({ field: field ?? { type: FieldType.number, config: panel.fieldConfig.defaults, values: [] }, theme, timeZone: 'utc' });
  if (field) {
    const [min, max] = [Math.min(...field.values), Math.max(...field.values)];
    field.state = { ...field.state, range: { min, max, delta: max - min } };
  }
  const last = field ? reduceField({ field, reducers: ['lastNotNull'] }).lastNotNull : null;
  const value = field ? processor(last) : { text: panel.fieldConfig.defaults.noValue, numeric: NaN };
  const sparkline = field ? { y: { ...field, config: { ...field.config, color: { mode: 'fixed', fixedColor: value.color } } }, x: frames[0].fields[0] } : undefined;
  return (
    <BigValue value={value as any} width={width} height={height} theme={theme} colorMode={'value' as any}
      graphMode={'area' as any} justifyMode={'auto' as any} sparkline={sparkline as any} hasLinks={false} />
  );
}

function Grid({ panel, width, height }: any) {
  const [frame, setFrame] = useState<any>();
  const found = panel.targets.flatMap((target: any) => ANSWERS[`${panel.id}${target.refId}`]);
  drawn[panel.title] = found.length;
  useEffect(() => {
    if (!found.length) return;
    const labels = [...new Set(found.flatMap((one: any) => Object.keys(one.metric)))] as string[];
    const flat = toDataFrame({
      fields: [
        { name: 'Time', type: FieldType.time, values: found.map((one: any) => one.value[0] * 1000) },
        ...labels.map((name) => ({ name, type: FieldType.string, values: found.map((one: any) => one.metric[name] ?? '') })),
        { name: 'Value', type: FieldType.number, values: found.map((one: any) => Number(one.value[1])) },
      ],
    });
    const subscription = transformDataFrame(panel.transformations ?? [], [flat]).subscribe((done) => setFrame(dressed(done[0], panel)));
    return () => subscription.unsubscribe();
  }, []);
  if (!found.length) return <Empty panel={panel} />;
  if (!frame) return null;
  const coloured = panel.fieldConfig.defaults.custom?.cellOptions?.type === 'color-background';
  const rows = Array.from({ length: Math.min(frame.length, Math.floor((height - 34) / 30)) }, (_, row) => row);
  return (
    <table style={{ width: '100%', fontSize: 13, borderCollapse: 'collapse' }}>
      <thead><tr>
        {frame.fields.map((field: any) => (
          <th key={field.name} style={{ textAlign: field.type === FieldType.number ? 'right' : 'left', padding: '6px 8px', color: theme.colors.text.primary, borderBottom: `1px solid ${theme.colors.border.weak}` }}>
            {getFieldDisplayName(field, frame).replace('\\', ' × ')}
          </th>
        ))}
      </tr></thead>
      <tbody>{rows.map((row) => (
        <tr key={row}>{frame.fields.map((field: any) => {
          const raw = field.values[row];
          const shown = field.display(raw);
          const number = field.type === FieldType.number;
          const filled = coloured && number && raw !== null && raw !== undefined && raw !== '';
          return (
            <td key={field.name} style={{ textAlign: number ? 'right' : 'left', padding: '5px 8px', borderBottom: `1px solid ${theme.colors.border.weak}`, background: filled ? shown.color : undefined, color: filled ? theme.colors.getContrastText(shown.color) : undefined, whiteSpace: 'nowrap' }}>
              {raw === null || raw === '' || raw === undefined ? '' : `${shown.text}${shown.suffix ?? ''}`}
            </td>
          );
        })}</tr>
      ))}</tbody>
    </table>
  );
}

// Grafana's grid moves every panel up until it meets another; panels of collapsed rows take no room.
function compacted(panels: any[]): any[] {
  const placed: any[] = [];
  for (const panel of [...panels].sort((a, b) => a.gridPos.y - b.gridPos.y || a.gridPos.x - b.gridPos.x)) {
    const { x, w } = panel.gridPos;
    const above = placed.filter(({ gridPos: p }) => p.x < x + w && x < p.x + p.w).map(({ gridPos: p }) => p.y + p.h);
    placed.push({ ...panel, gridPos: { ...panel.gridPos, y: Math.max(0, ...above) } });
  }
  return placed;
}

const KINDS: Record<string, any> = { timeseries: Lines, stat: Stat, table: Grid };

function place(grid: any) {
  return {
    position: 'absolute' as const, left: 8 + grid.x * COLUMN, top: 96 + grid.y * CELL,
    width: grid.w * COLUMN - GAP, height: grid.h * CELL - GAP,
  };
}

function Panel({ panel }: any) {
  const box = place(panel.gridPos);
  if (panel.type === 'row') {
    return <div style={{ ...box, fontSize: 16, fontWeight: 500, paddingTop: 4 }}>{panel.collapsed ? '›' : '⌄'} {panel.title}</div>;
  }
  const Kind = KINDS[panel.type];
  return (
    <div style={box}>
      <PanelChrome title={panel.title} description={panel.description} width={box.width} height={box.height}>
        {(width, height) => <Kind panel={panel} width={width} height={height} />}
      </PanelChrome>
    </div>
  );
}

function Page() {
  const chip = { background: theme.colors.background.secondary, border: `1px solid ${theme.colors.border.medium}`, padding: '4px 10px', borderRadius: 2, marginRight: 8 };
  const panels = compacted(DASHBOARD.panels);
  const bottom = Math.max(...panels.map((one: any) => one.gridPos.y + one.gridPos.h));
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <div style={{ position: 'relative', width: WIDTH, height: 96 + bottom * CELL + 8, background: theme.colors.background.canvas, color: theme.colors.text.primary }}>
        <div style={{ padding: '12px 12px 8px', fontSize: 18, fontWeight: 500 }}>{DASHBOARD.title}</div>
        <div style={{ padding: '0 12px', fontSize: 13 }}>
          {DASHBOARD.templating.list.filter((one: any) => one.type === 'query').map((one: any) => (
            <span key={one.name} style={chip}>{one.label} <b style={{ marginLeft: 6, color: theme.colors.text.link }}>{CHOSEN[one.name] ?? 'All'}</b></span>
          ))}
        </div>
        {panels.map((one: any) => <Panel key={one.id} panel={one} />)}
      </div>
    </ThemeContext.Provider>
  );
}

async function main() {
  const problems: string[] = [];
  window.addEventListener('error', (event) => problems.push(`${event.message} ${event.error?.stack ?? ''}`.slice(0, 600)));
  window.addEventListener('unhandledrejection', (event) => problems.push(`${event.reason} ${event.reason?.stack ?? ''}`.slice(0, 600)));
  await initPluginTranslations('grafana');
  createRoot(document.getElementById('root')!).render(<Page />);
  setTimeout(() => { document.getElementById('report')!.textContent = JSON.stringify({ drawn, problems, height: document.getElementById('root')!.scrollHeight }); }, 3000);
}

main();
