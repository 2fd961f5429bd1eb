"""Baking: what is missing is fetched from somebody, who gets a piece in the end."""

RULES = {
    "baking": [
        "<plan>[ <stirring>|] <missing> <who has it>\n<asks> <gets>\n<oven>[| <smell>] <piece>",
    ],
    "plan": [
        "<when>, {hero.he} [wanted|began|tried|promised] to bake {fruit=fruit as a} {dish=dish} with {hero.his} "
        "{elder=family}.",
        '<when>, {hero.his} {elder=family} said: "Let us [bake|make] {fruit=fruit as a} '
        '{dish=dish}[|, {hero}| for supper| for the fair]!"',
        "<when>, {hero.he} [wanted|began|tried|promised] to bake {fruit=fruit as a} {dish=dish} for {hero.his} "
        "{elder=family}.",
    ],
    "stirring": [
        "<Hero> [washed {hero.his} hands|put on an apron|lit the oven|found a bowl|read the recipe twice|"
        "took a big spoon].",
        "<Hero> took {eggs=number} eggs, "
        "a [cup|bowl|jug|spoon] of [water|oil|oats|rice|juice] and a [big|wooden|long|silver] spoon.",
        "Soon there were {eggs=number} eggs on the [table|floor|ceiling|cat|window|piano].",
    ],
    "missing": [
        "But there was no {staple=staple} in the [house|kitchen|cupboard|jar].",
        '"Oh [no|dear|my], we have no {staple=staple}!" <sobbed> {hero}<sadly>.',
        "But the {staple=staple} was [all gone|not enough|missing|in the cat|too old].",
        "Then {hero.he} dropped the {staple=staple}, and [nothing was left|the dog ate it|it was all over the floor].",
    ],
    "who has it": [
        "So {hero.he} <ran> to the {place=place}. There [lived|was] <met>.",
        "Luckily, {place=place as at} lived <met>. "
        "It had [everything|a big cupboard|plenty|{jars=number} jars] in its {friend.home}.",
        '"Go to the {place=place}," said {hero.his} {elder}. {place.At} lived <met>.',
    ],
    "asks": [
        '"<please>, [do you have|could you lend me|may I have|is there] some {staple}?" asked {hero}<friendly>.',
        "{hero} knocked at its {friend.home}. "
        '"[We need|Please lend me|I am looking for] {staple}," {hero.he} <said><friendly>.',
        '"What do you [want|need|wish for|have there]?" it <asked>. '
        '"[Some|A little|A bit of] {staple}, please," <replied> {hero}<friendly>.',
    ],
    "please": ["Please", "Good day", "Hello", "Excuse me", "Dear {friend}", "Forgive me"],
    "gets": [
        '"<of course>," <replied> <friend> and gave {hero.him} a [cup|jar|bowl|pot|bucket] of {staple}.',
        '"Only if I [get|may have|can taste] [a piece|a slice|a bit] of the {fruit} {dish}," <replied> '
        "<friend><friendly>. {hero} [promised|laughed|nodded|agreed].",
        '"I will give you {staple} for some {food=friend.foods}," <replied> <friend>, '
        "and {hero.he} [had|found] some in {hero.his} [bag|pocket|basket|{clothes}].",
    ],
    "of course": ["Of course", "Take this", "With pleasure", "Here you are", "Wait a moment", "As much as you like"],
    "oven": [
        "<at last> the {fruit} {dish} was [ready|done|out of the oven|golden brown|on the table].",
        "<So hero> <ran> home with the {staple}, and [soon|an hour later|at last] the {fruit} {dish} was [ready|done].",
        "Now the {fruit} {dish} could go into the oven, and it came out [golden|perfect|a little black|twice as big].",
    ],
    "smell": [
        "The [whole|entire] [house|street|village|town] smelled of {fruit} {dish}.",
        '"[How good|Wonderful|Well done, {hero}|The best of all|Oh]!" <cried> {hero.his} {elder}<gladly>.',
        "{hero}'s {elder} [tried some|clapped|took a big piece|cut it in <number of>|sang].",
    ],
    "piece": [
        "The [first|biggest|last|warmest|best] piece was for <friend>, [because of|who had given] the {staple}.",
        "<So hero> took a [big|warm|thick|golden] piece to the {place}, "
        "and <friend> [ate it at once|licked its nose|sang for joy|asked for more|bowed].",
        "And who [came along|knocked at the door|sat at the table]? "
        "It was {na}{me}, the {nature} {friend}, [hungry as ever|with more {staple}|all dressed up|with a big plate].",
        "{hero} was so happy that {hero.he} {hobby.did} "
        "[in the kitchen|all evening|with {hero.his} {elder}|on the table].",
    ],
}
