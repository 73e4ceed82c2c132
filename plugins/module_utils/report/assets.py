# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the page looks like and what its filter does. No word here comes from a host."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1a1d21;--dim:#555c66;--line:#c9ced6;--soft:#f2f4f7;
--pass:#0b6b2e;--passbg:#e2f4e8;--fail:#a3121b;--failbg:#fde7e8;--unknown:#7a4a00;--unknownbg:#fdf0d5;
--waived:#4b3a9b;--waivedbg:#ece9fb;--accent:#0b57a4}
@media (prefers-color-scheme:dark){:root{--bg:#14171b;--fg:#e8eaed;--dim:#aab2bd;--line:#3d444d;--soft:#1e2329;
--pass:#7ee2a0;--passbg:#12351f;--fail:#ff9ea3;--failbg:#431519;--unknown:#ffcf7d;--unknownbg:#3b2a08;
--waived:#c7bcff;--waivedbg:#2a2350;--accent:#8ec5ff}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.45 system-ui,sans-serif}
header,main,footer{max-width:1280px;margin:0 auto;padding:0 20px}
h1{font-size:1.5rem;margin:20px 0 4px}h2{font-size:1.2rem;margin:32px 0 8px}h3{font-size:1rem;margin:16px 0 4px}
a{color:var(--accent)}p{margin:4px 0 8px}.dim{color:var(--dim)}
.verdict{display:inline-block;padding:6px 14px;border-radius:6px;font-weight:700;font-size:1.1rem}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:6px}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{text-align:left;padding:5px 8px;border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:anywhere}
td:first-child{min-width:10ch}
thead th{background:var(--soft);white-space:nowrap;overflow-wrap:normal}td.n{text-align:right;white-space:nowrap}
.matrix td{text-align:center;white-space:nowrap}.matrix thead th{text-align:center}
.s{display:inline-block;border-radius:4px;padding:1px 6px;font-weight:600;white-space:nowrap}
.pass{color:var(--pass);background:var(--passbg)}.fail{color:var(--fail);background:var(--failbg)}
.unknown{color:var(--unknown);background:var(--unknownbg)}.waived{color:var(--waived);background:var(--waivedbg)}
.not_applicable{color:var(--dim)}
details{border:1px solid var(--line);border-radius:6px;margin:6px 0;content-visibility:auto;
contain-intrinsic-size:auto 38px}
details details{margin:4px 0;border:0}summary{cursor:pointer;padding:6px 10px}details>div{padding:0 12px 10px}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--soft);padding:8px;border-radius:4px;font-size:.8rem;
margin:4px 0}
.plots{display:flex;flex-wrap:wrap;gap:16px}.plot{width:100%;max-width:520px;height:auto}
.plot text{fill:var(--dim);font-size:11px}.bar{fill:var(--accent)}.late{fill:var(--fail)}
.limit{stroke:var(--fail);stroke-width:2;stroke-dasharray:5 3}
.growth{fill:none;stroke:var(--accent);stroke-width:2}.gap{fill:var(--unknownbg)}
.tools{display:none;gap:12px;flex-wrap:wrap;margin:16px 0 0;align-items:end}.js .tools{display:flex}
label{display:block;font-size:.85rem;color:var(--dim)}
input,select{font:inherit;padding:5px 8px;border:1px solid var(--dim);border-radius:4px;background:var(--bg);
color:var(--fg)}
:focus-visible{outline:3px solid var(--accent);outline-offset:2px}
.skip{position:absolute;left:-999px}.skip:focus{left:8px;top:8px;background:var(--bg);padding:6px}
[hidden]{display:none!important}
@media print{:root{color-scheme:light;--bg:#fff;--fg:#000;--dim:#444;--soft:#f4f4f4;--line:#aaa;--pass:#0b6b2e;
--passbg:#fff;--fail:#a3121b;--failbg:#fff;--unknown:#7a4a00;--unknownbg:#fff;--waived:#4b3a9b;--waivedbg:#fff;
--accent:#0b57a4}
body{font-size:10pt}header,main,footer{max-width:none;padding:0}.tools,.skip{display:none!important}
.scroll{overflow:visible;border:0}tr,summary{break-inside:avoid}
details{border:0}thead{display:table-header-group}
:root:not(.many) details{content-visibility:visible}
:root:not(.many) details::details-content{content-visibility:visible;height:auto}
:root:not(.many) details:not([open])>*{display:revert}}
"""

SCRIPT = """
(function(){
var root=document.documentElement;root.classList.add('js');
var text=document.getElementById('q'),state=document.getElementById('st'),count=document.getElementById('n');
var rows=Array.prototype.slice.call(document.querySelectorAll('[data-host]'));
function apply(){
var q=text.value.toLowerCase(),s=state.value,shown={};
rows.forEach(function(row){
var fits=row.dataset.find.indexOf(q)>=0&&(!s||row.dataset.states.split(' ').indexOf(s)>=0);
row.hidden=!fits;if(fits){shown[row.dataset.host]=1;}
});
count.textContent=Object.keys(shown).length+' hosts shown';
}
text.addEventListener('input',apply);state.addEventListener('change',apply);apply();
window.addEventListener('beforeprint',function(){
if(root.classList.contains('many')&&document.querySelectorAll('div[data-host]:not([hidden])').length>100){return;}
document.querySelectorAll('div[data-host]:not([hidden]) details').forEach(function(one){one.open=true;});});
})();
"""
