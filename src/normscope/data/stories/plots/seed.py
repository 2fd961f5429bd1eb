"""A seed: it is planted, threatened, saved, and grows into what it was said to be."""

RULES = {
    "seed": [
        "<finds seed> <plants> <care>[ <more care>|]\n<danger> <saved>\n<grown> <feast>",
    ],
    "finds seed": [
        "<when>, {hero.his} {elder=family} gave {hero.him} {plant=plant as a} seed.",
        "<when>, {hero.he} [found|bought|was given|won] {plant=plant as a} seed <at what>. "
        "{hero.He} [showed|took] it to {hero.his} {elder=family}.",
        "<when>, {hero.he} asked {hero.his} {elder=family} for {plant=plant as a} seed.",
    ],
    "at what": ["at the fair", "at school", "on the street", "at the market", "in an old book", "on the stairs"],
    "plants": [
        "<So hero> put it into <the ground> [behind the house|by the door|near the well|in the sun|under the window].",
        '"<advice>," <said> {hero.his} {elder}<friendly>, and {hero} did.',
    ],
    "the ground": ["the ground", "a pot", "a hole", "warm earth", "an old boot", "a tin", "a teapot"],
    "advice": ["Put it in the ground", "Give it water", "Be patient", "Sing to it", "Let it sleep", "Keep it warm"],
    "care": [
        "Every [day|morning|evening|hour|night] {hero.he} gave it "
        "[water|a little water|some milk|a drop of tea|a smile].",
        "<Hero> {hobby.did} for it every [day|morning|evening|hour|night].",
        "{days=number as cap} [days|weeks] {hero.he} waited, "
        "and then [a green tip|a tiny leaf|something green|a bud] came up.",
    ],
    "more care": [
        '"[Grow|Wake up|Good morning|Do not be shy|Hurry up], little {plant}!" {hero.he} <cried><friendly>.',
        "<Hero> [built a fence|made a scarecrow|pulled out the weeds|chased the crows away|drew a picture of it|"
        "told it a story].",
        "At night {hero.he} [dreamed of|talked about|drew] a [giant|golden|talking|flying|singing] {plant}.",
    ],
    "danger": [
        "<one night> there was [frost|a storm|heavy rain|hail|snow]. "
        "<So hero> covered the {plant} with {hero.his} {tint} {clothes}.",
        "<one night> {nature=nature as a} {friend=animal} came and [wanted|tried|began] to eat it. "
        "<So hero> gave it {food=friend.foods} instead.",
        "<one night> the {plant} [hung its head|turned yellow|almost died|felt dry]. "
        "<So hero> carried {buckets=number} buckets [from the well|from the river|of water|of rain].",
        "<one night> {pests=number} [snails|beetles|crows|ants|rats] sat on the {plant}. "
        "<So hero> [carried them away|sang until they left|asked them to go|counted them and clapped].",
    ],
    "one night": ["One night", "But then", "One day", "A week later", "In the third week", "On a Monday"],
    "saved": [
        '"You [saved|rescued|helped] it!" <cried> {hero.his} {elder}<gladly>.',
        "And the {plant} [lived|was safe|grew and grew|said nothing, but it was glad|stood up again].",
        '"[Well done|That was close|How clever|Good work|Bravo], {hero}," <said> {hero.his} {elder}<gladly>.',
    ],
    "grown": [
        "In [summer|autumn|August|September|the end|October] the {plant} was {plant.grown}.",
        "[And one day|At last|Before long] the {plant} was {plant.grown}, and <everybody came>.",
        "It took {men=number} [people|men|horses|friends|cats] to [carry|move|pick|lift] the {plant}, "
        "for it was {plant.grown}.",
    ],
    "everybody came": [
        *("everybody came to see it", "nobody could believe it"),
        *("a man from the paper came", "the neighbours stared"),
    ],
    "feast": [
        "Everyone in the [village|street|house|town] got {plant.meal}.",
        "{hero.His} {elder} made {plant.meal} for [everyone|the whole street|supper|the two of them].",
        "{hero} kept {seeds=number} seeds for [next year|a friend|{hero.his} {elder}|rainy days].",
        "{hero} [was proud|laughed|clapped|jumped for joy] and {hobby.did} "
        "[all day|until dark|beside it|for the {plant}].",
    ],
}
