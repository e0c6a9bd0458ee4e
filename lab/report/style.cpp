#include "lab/report/page.h"
#include "lab/report/palette.h"

namespace lms::report {
namespace {

constexpr const char* kStyle = R"(
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;scroll-padding-top:3.5rem}
body{margin:0;background:var(--page);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main,.top,footer{max-width:1080px;margin:0 auto;padding:0 24px}
a{color:var(--link);text-underline-offset:2px}
h1{font-size:1.9rem;line-height:1.15;margin:0;letter-spacing:-.015em}
h2{font-size:1.4rem;line-height:1.25;margin:0;letter-spacing:-.01em}
h3{font-size:1.05rem;margin:2rem 0 .75rem}
h4,figcaption h3,.note h3{font-size:.95rem;line-height:1.35;margin:0}
p{margin:.25rem 0}
code{font:.85em/1.4 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere}
.soft{color:var(--soft)}
.good{color:var(--good)}
.bad{color:var(--bad)}
.none{color:var(--soft)}
.top{padding-top:2.25rem}
.top div{display:flex;gap:1rem;align-items:flex-start;justify-content:space-between}
.top p{color:var(--soft);margin:.5rem 0 0;font-size:.95rem}
.theme{flex:none;font:inherit;font-size:.85rem;color:var(--ink);background:var(--card);cursor:pointer;
border:1px solid var(--axis);border-radius:999px;padding:.35rem .85rem}
.theme[hidden]{display:none}
.theme:hover{border-color:var(--ink)}
:focus-visible{outline:2px solid var(--link);outline-offset:2px}
nav{position:sticky;top:0;z-index:3;background:var(--page);border-bottom:1px solid var(--faint);
margin-top:1.5rem}
nav ul{max-width:1080px;margin:0 auto;padding:.55rem 24px;display:flex;gap:.4rem 1.1rem;list-style:none;
overflow-x:auto;white-space:nowrap;font-size:.9rem}
nav a{text-decoration:none}
nav a:hover{text-decoration:underline}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(300px,1fr));gap:14px;margin:1.5rem 0}
.card{background:var(--card);border:1px solid var(--faint);border-radius:10px;padding:18px 20px}
.cards .card{display:flex;flex-direction:column;text-decoration:none;color:inherit}
a.card:hover{border-color:var(--axis)}
.cards .name{font-size:.9rem;color:var(--soft);display:flex;gap:.5rem}
.cards .name b{color:var(--ink)}
.big{font-size:2.6rem;line-height:1.1;font-weight:650;letter-spacing:-.03em;margin-top:.5rem;
font-variant-numeric:tabular-nums}
.state{font-weight:600;white-space:nowrap}
.goals{display:table;padding:0;border-collapse:separate;border-spacing:0;font-size:.9rem;
margin-bottom:14px;overflow:hidden}
.goals th,.goals td{text-align:left;vertical-align:top;white-space:normal;padding:.6rem .8rem}
.goals tbody:last-child>tr:last-child>*,.goals tbody:last-child>tr>th{border-bottom:0}
.goals tbody tr:last-child>*{border-bottom:1px solid var(--faint)}
.goals th:first-child{padding-left:1.25rem;width:15%}.goals thead th{white-space:nowrap}
.goals td:nth-last-child(5){width:15%}.goals td:nth-last-child(4){width:17%}
.goals td:nth-last-child(3){width:8%;white-space:nowrap}.goals td:last-child{width:9rem}
.goals tbody th{font-weight:400}
.goals tbody th a{color:inherit;text-decoration:none}
.goals tbody th a:hover{text-decoration:underline}
.goals b{font-weight:650}
.goals td:nth-last-child(2) b{font-size:1.15rem}
.goals .end{margin-top:.25rem;padding-left:.6rem;border-left:3px solid var(--gap);font-size:.85rem}
.settings{font-size:.88rem;color:var(--soft);margin:-.5rem 0 .75rem;overflow-wrap:anywhere}
section{margin-top:3rem;padding-top:.5rem}
main>section:first-child{margin-top:1rem}
section>header{border-top:2px solid var(--ink);padding-top:1rem;margin-bottom:.75rem}
section>header p{color:var(--soft);font-size:.92rem;max-width:90ch;text-wrap:pretty}
.figures{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:14px;align-items:stretch}
.figures>*{min-width:0}
.column{display:flex;flex-direction:column;gap:14px}
.whole{grid-column:1/-1}
figure{margin:0}
figcaption{margin-bottom:.9rem}
figcaption p{font-size:.88rem;color:var(--soft);line-height:1.45;max-width:100ch;text-wrap:pretty}
figure svg{display:block;width:100%;height:auto;overflow:visible;font-variant-numeric:tabular-nums}
figure svg.narrow,figure svg.middle{display:none}
.note{margin:14px 0 0;padding:14px 20px;border-left:3px solid var(--gap);background:var(--card);
border-radius:0 10px 10px 0;font-size:.92rem}
p.facts{margin:14px 0 0}.facts{margin:.25rem 0 0;padding-left:1.2rem;font-size:.92rem;color:var(--soft)}
p.facts{padding-left:0}
details{margin-top:14px}
figure details{margin-top:.75rem;font-size:.9rem}
summary{cursor:pointer;font-weight:600;font-size:.92rem;padding:.25rem 0}
summary:hover{color:var(--link)}
.failures ul,.problems ul{margin:.5rem 0;padding-left:1.1rem;font-size:.9rem}
.failures li,.problems li{margin:.45rem 0;overflow-wrap:anywhere}
.failures strong{font-weight:600}
.scroll{overflow-x:auto;max-width:100%;margin-top:.5rem;background:var(--card);
border:1px solid var(--faint);border-radius:8px}
table{border-collapse:collapse;font-size:.82rem;font-variant-numeric:tabular-nums;width:100%}
th,td{padding:.38rem .7rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--faint)}
thead th{color:var(--soft);font-weight:600;vertical-align:bottom}
tbody tr:last-child>*{border-bottom:0}
th.l,td.l{text-align:left}
tbody th{font-weight:500}
.records tbody th:first-child,.records thead th:first-child{position:sticky;left:0;background:var(--card)}
.records tr.part th{background:var(--track);color:var(--ink);font-weight:600}
.records tr.part span{position:sticky;left:.7rem}
.swatch{display:inline-block;width:11px;height:11px;margin-right:6px;vertical-align:-1px}
footer{margin-top:4rem;padding-top:1.25rem;padding-bottom:3rem;font-size:.88rem;color:var(--soft)}
footer dl{display:grid;grid-template-columns:max-content 1fr;gap:.3rem 1.2rem;margin:.75rem 0}
footer dt{font-weight:600;color:var(--ink)}
footer dd{margin:0}
#tip{position:fixed;z-index:9;pointer-events:none;max-width:min(340px,90vw);background:var(--ink);
color:var(--page);font-size:.82rem;line-height:1.4;padding:.4rem .6rem;border-radius:6px;
overflow-wrap:anywhere}
#tip[hidden]{display:none}
.hit:hover{fill:var(--axis);fill-opacity:.14}
@media (max-width:980px){figure svg.wide{display:none}figure svg.middle{display:block}
figure svg.half.narrow{display:block;max-width:440px}}
@media (max-width:700px){.figures{grid-template-columns:minmax(0,1fr)}
figure svg.half.wide{display:block;max-width:540px}figure svg.half.narrow{display:none}}
@media (max-width:540px){figure svg.middle,figure svg.half.wide{display:none}
figure svg.narrow,figure svg.half.narrow{display:block;max-width:440px}}
@media (max-width:560px){main,.top,footer,nav ul{padding-left:12px;padding-right:12px}
.card{padding:14px 10px}.cards .card{padding:14px}.note{padding:12px}
.cards{grid-template-columns:minmax(0,1fr)}h1{font-size:1.5rem}
footer dl{grid-template-columns:1fr}footer dd{margin-bottom:.5rem}}
@media (max-width:760px){.goals,.goals tbody,.goals tr,.goals th,.goals td{display:block}
.goals thead{display:none}.goals{padding:0 14px}
.goals th,.goals td,.goals th:first-child{padding:.15rem 0;border:0}
.goals td:nth-child(n),.goals th:first-child{width:auto}
.goals tbody{padding:.75rem 0;border-bottom:1px solid var(--faint)}.goals tbody:last-child{border:0}
.goals tbody tr:last-child>*{border:0}
.goals tr+tr{margin-top:.7rem}.goals tbody th{font-size:1rem}
.goals td{display:grid;grid-template-columns:6.2rem minmax(0,1fr)}
.goals td::before{content:attr(data-name);color:var(--soft)}}
@media print{nav,.theme{display:none}.card{break-inside:avoid}}
)";

constexpr const char* kScript = R"((function(){
'use strict';
var root=document.documentElement,button=document.querySelector('.theme');
var dark=window.matchMedia('(prefers-color-scheme: dark)');
function now(){return root.dataset.theme||(dark.matches?'dark':'light');}
function say(){button.textContent=now()==='dark'?'Light':'Dark';
button.setAttribute('aria-label','Change to '+(now()==='dark'?'light':'dark')+' colours');}
try{var kept=localStorage.getItem('lms-report-theme');
if(kept==='dark'||kept==='light'){root.dataset.theme=kept;}}catch(e){}
button.hidden=false;say();
dark.addEventListener('change',say);
button.addEventListener('click',function(){root.dataset.theme=now()==='dark'?'light':'dark';say();
try{localStorage.setItem('lms-report-theme',root.dataset.theme);}catch(e){}});
var tip=document.createElement('div');tip.id='tip';tip.hidden=true;
tip.setAttribute('aria-hidden','true');document.body.appendChild(tip);
document.querySelectorAll('figure svg').forEach(function(svg){
Array.prototype.forEach.call(svg.querySelectorAll('title'),function(t){
if(t.parentNode===svg){svg.setAttribute('aria-label',t.textContent);
svg.removeAttribute('aria-labelledby');
var d=svg.querySelector('desc');if(d){svg.setAttribute('aria-describedby',d.id);}}
else{t.parentNode.setAttribute('data-tip',t.textContent);}
t.remove();});});
function show(e){
var mark=e.target.closest&&e.target.closest('[data-tip]');
if(!mark){tip.hidden=true;return;}
tip.textContent=mark.getAttribute('data-tip');tip.hidden=false;
var box=tip.getBoundingClientRect(),x=e.clientX+14,y=e.clientY+16;
if(x+box.width>innerWidth-8){x=Math.max(8,e.clientX-box.width-10);}
if(y+box.height>innerHeight-8){y=Math.max(8,e.clientY-box.height-12);}
tip.style.left=x+'px';tip.style.top=y+'px';}
document.addEventListener('pointermove',show);
document.addEventListener('pointerdown',show);
document.addEventListener('scroll',function(){tip.hidden=true;},{passive:true});
})();)";

}  // namespace

std::string page_style() {
  return ":root{color-scheme:light dark;" + declare(false) + "}\n" +
         "@media (prefers-color-scheme:dark){:root:not([data-theme=light]){" + declare(true) +
         "}}\n" + ":root[data-theme=dark]{color-scheme:dark;" + declare(true) + "}\n" +
         ":root[data-theme=light]{color-scheme:light}\n" + kStyle + chart_rules();
}

std::string page_script() { return kScript; }

}  // namespace lms::report
