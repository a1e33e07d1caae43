"""What the ``fast`` segmenter knows of languages: words, all lower case, without a final stop.

``words`` says what the classes and roles are. Stops of other scripts are known in any language.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Language:
    """Words with white space between, by their class before a stop and by their roles.

    ordinals: a number with a stop is an ordinal, which no sentence ends with ("am 3. Mai").
    """

    title: str = ""
    numbered: str = ""
    latin: str = ""
    maybe: str = ""
    ending: str = ""
    starter: str = ""
    pronoun: str = ""
    saying: str = ""
    goes_on: str = ""
    label: str = ""
    ordinals: bool = False


_ENGLISH = Language(
    title="""
mr mrs ms dr prof gen col maj capt lt sgt cpl pvt adm cmdr brig rev hon fr msgr sen rep gov pres
supt det messrs mme mlle amb sec'y insp mt ste pfc mdm sr dra sra srta
""",
    numbered="""
no nos p pp fig figs vol vols art ch chap sect par para eq eqs ver pt op nr tel ext sec div
""",
    latin="e.g i.e eg ie cf viz vs v approx ca incl esp resp i.a aka p.s ps drs c.f",
    maybe="""
inc co corp ltd bros llc plc jr sr esq phd ph.d m.d b.a m.a b.s m.s d.d.s dept univ assn assoc jan
feb mar apr jun jul aug sept sep oct nov dec tue tues wed thu thurs fri a.m p.m u.s u.k u.n u.s.a
e.u d.c l.a n.y u.s.s.r ave blvd rd ln hwy pl sq bldg ariz ark calif colo conn del fla ga ind kan
kans ky mich minn mo mont neb nev okla pa penn tenn tex va vt wis wyo ont que est avg ed eds trans
rev ft oz lb lbs yr yrs mos cu km mi gal mph a.d b.c b.c.e c.e a.k.a s.p.a n.v a.g g.m.b.h gmbh
n.a p.o r.i n.j n.h n.c s.c s.d n.d n.m w.va int'l nat'l gov't maj.gen lt.gov lt.col al st ft hrs
""",
    ending="etc",
    starter="""
the a an this that these those it its he she they we i you his her their our my your there here in
on at by for from with as of to after before since when while where why how what who which if but
and or so yet nor because although though however moreover furthermore meanwhile also then thus
therefore still now today yesterday tomorrow some many most all both each every no not one two
another other others such more few several first second finally later once again even just only
under over during through despite without about according until unless is are was were do does did
has have had can could will would should may might let please mr mrs ms dr analysts officials
president critics traders shares sales
""",
    pronoun="i he she they we you it",
    saying="""
said says say saying asked asks ask replied replies answered answers cried cries called calls
shouted shouts yelled yells screamed screams whispered whispers muttered mutters murmured added
adds exclaimed exclaims demanded demands wondered thought continued began started repeated
returned inquired enquired laughed growled snapped sighed groaned gasped howled barked roared
remarked observed snarled hissed
""",
    goes_on="is was are were be been of may",
    label="figure fig table chapter section step part appendix box exhibit scene act lesson",
)
_GERMAN = Language(
    title="hr fr dr prof dipl ing mag st frl gen hl ehem kgl bgm mr mrs ms",
    numbered="nr art abs abb tab bd kap ziff tel aufl",
    latin="""
z z.b bzw d.h s ca vgl u.a v.a i.d.r bspw sog inkl exkl zzgl ggf evtl geb gest verh insb inbes m.e
o.g s.o s.u zit allg einschl entspr max min mind gegr lat engl frz franz dt griech ital span russ
österr u.u v.chr n.chr verw wg zw rd eigtl urspr ungef vorm nachm bes
""",
    maybe="""
usw etc u.s.w str co jr sen chr jh jhd jan feb mär apr jun jul aug sept sep okt nov dez mio mrd
tsd std min sek km ff f e.v a.d a.m a.g o.ä u.ä v.h
""",
    starter="""
der die das ein eine er sie es wir ihr ich in im am an auf bei mit von vom zu zum zur für nach vor
aber und oder doch denn als wenn da dann so auch nur noch schon hier dort diese dieser dieses
seine ihre alle viele einige man was wer wie wo warum durch unter über seit während nachdem obwohl
trotz dabei damit danach dazu daher deshalb außerdem zudem allerdings jedoch heute gestern später
bis
""",
    ordinals=True,
)
_FRENCH = Language(
    title="m mm mme mmes mlle mlles dr drs pr me mgr st ste gén col cap lt mr mrs ms",
    numbered="n no nos p pp art fig vol chap t éd tél al",
    latin="cf c.-à-d env p.ex ex av apr vs i.e e.g boul hab",
    maybe="co cie inc ltd jr janv févr avr juil sept oct nov déc j.-c a.m p.m u.s s.a av bd",
    ending="etc",
    starter="""
le la les un une des il elle ils elles on nous vous je ce cette ces cet son sa ses leur leurs dans
en au aux à de du par pour sur avec sans sous et mais ou donc or car si quand lorsque comme après
avant depuis pendant selon ainsi alors aussi puis enfin ensuite cependant toutefois c'est qui que
quoi où
""",
)
_SPANISH = Language(
    title="""
sr sra srta sres dr dra d dña prof profa ing lic gral cnel cap sto sta san mons fr arq mr mrs ms st
""",
    numbered="n núm núms no p pp pág págs art arts fig vol cap t tel ed",
    latin="p.ej ej ee cf vs aprox i.e e.g esp máx mín av avda c hab",
    maybe="""
co cía inc ltd jr ee.uu uu a.c d.c a.m p.m s.a s.l ud uds vd vds ene feb mar abr jun jul ago sept
oct nov dic
""",
    ending="etc",
    starter="""
el la los las un una unos unas él ella ellos ellas yo tú usted nosotros en de a al del por para
con sin sobre y pero o si cuando como después antes desde durante según así entonces también luego
este esta estos estas ese esa su sus se no lo que qué quién dónde
""",
)
_ITALIAN = Language(
    title="""
sig sigg sig.ra sig.na dott dott.ssa prof prof.ssa avv ing on arch geom mons s ss gen col mr mrs ms
st
""",
    numbered="n nn p pp pag pagg art artt fig vol cap tel ed",
    latin="es cfr ca vs i.e e.g ad.es p.es cd c.d sec distr",
    maybe="""
co s.p.a s.r.l jr a.c d.c gen feb mar apr mag giu lug ago set sett ott nov dic
""",
    ending="ecc etc",
    starter="""
il lo la i gli le un uno una egli lui lei essi noi voi io in nel nella di del della da dal a al
alla per con su sul tra fra e ed ma o se quando come dopo prima durante secondo così allora anche
poi questo questa questi queste quello suo sua loro si non che chi dove perché
""",
)
_PORTUGUESE = Language(
    title="""
sr sra srs sras srta dr dra drs prof profa eng exmo exma d gen cel cap sto sta arq pe mr mrs ms st
""",
    numbered="n nº no p pp pág págs art arts fig vol cap tel ed",
    latin="p.ex ex cf vs aprox i.e e.g av r máx mín",
    maybe="""
co cia ltda inc jr s.a a.c d.c a.m p.m jan fev mar abr mai jun jul ago set out nov dez sáb dom
""",
    ending="etc",
    starter="""
o a os as um uma uns umas ele ela eles elas eu tu você nós em no na nos nas de do da dos das por
pelo pela para com sem sobre e mas ou se quando como depois antes desde durante segundo assim
então também este esta estes estas esse essa seu sua seus suas não que quem onde
""",
)
_DUTCH = Language(
    title="dhr mevr mw dr drs prof ir ing mr mrs ms st ds gen kol kapt mgr",
    numbered="nr nrs art afb blz p pp fig vol hfdst tel",
    latin="""
bijv bv d.w.z m.b.t o.a i.p.v t.o.v t/m ca vgl cf i.v.m m.n o.b.v z.o.z zgn incl excl resp evt max
min
""",
    ending="enz etc",
    maybe="co jr sr v.chr n.chr e.d e.a jan feb mrt apr jun jul aug sept okt nov dec u.s",
    starter="""
de het een hij zij ze wij we ik je jij u in op aan bij met van voor naar uit door over onder na te
en maar of want als toen wanneer dan dus ook nog al hier daar deze dit die dat zijn haar hun er om
sinds tijdens volgens omdat hoewel echter daarom wat wie waar hoe
""",
)
_RUSSIAN = Language(
    title="г-н г-жа проф акад доц им св ген полк гр тов ст",
    numbered="стр с рис табл гл п пп ч т тел кв № вып изд",
    latin="""
т.е т.к т.н напр см ср др.-греч лат англ нем фр итал исп греч рус ок ул пр пер пл наб просп д обл
р-н респ пос дер ж.-д р букв устар ум род
""",
    maybe="""
г гг в вв н.э до н.э т.д т.п др пр млн млрд тыс руб коп долл км м см мм кг чел мин сек ч янв февр
апр авг сент окт нояб дек р
""",
    starter="""
в на с к по из от за о об у и а но или он она оно они мы вы я ты это этот эта эти тот та те как
когда если что кто где после до при для через под над без так также затем потом однако поэтому его
её их все не ещё уже только там здесь сегодня вчера
""",
)
LANGUAGES = {
    "ar": Language(),
    "de": _GERMAN,
    "en": _ENGLISH,
    "es": _SPANISH,
    "fr": _FRENCH,
    "hi": Language(title="डॉ श्री प्रो पं कु"),
    "it": _ITALIAN,
    "ja": Language(),
    "nl": _DUTCH,
    "pt": _PORTUGUESE,
    "ru": _RUSSIAN,
    "und": Language(),
    "zh": Language(),
}
"""By ISO 639 code; und: any other, without abbreviations."""
