"""What all stories share: how they begin, how they end, and small words.

After the opening there is always a hero with a hobby, in clothes of a colour. Rules with a capital begin a sentence.
"""

RULES = {
    "opening": [
        "[Once upon a time|Long ago|Once|Not long ago|In a far land] there [was|lived] a <trait> "
        "{hero=person as called}. {hero.He} <loved>.",
        "{hero=person} was a <trait> {hero.child} who <loved>.",
        "In a <snug> [house|cottage|hut|cabin|tower] <where> lived a <trait> {hero=person as called}, who <loved>.",
        "[This is|Here is|Listen to|I know] the [story|tale] of a <trait> {hero=person as called}. {hero.He} <loved>.",
        "[Do you know|Have you met|Do you remember|Who knows] {hero=person}? "
        "{hero.He} was a <trait> {hero.child} who <loved>.",
    ],
    "loved": [
        "<enjoyed> and wore {tint=colour as a} {clothes=clothes}",
        "had {tint=colour as a} {clothes=clothes} and <enjoyed>",
        "always wore {tint=colour as a} {clothes=clothes} and <enjoyed>",
    ],
    "enjoyed": [
        *("loved {hobby=hobby}<how much>", "liked {hobby=hobby}<how much>"),
        *("often stopped {hobby=hobby}", "was never too tired {hobby=hobby}"),
    ],
    "how much": [
        *("", " all day long", " more than anything", " in the rain", " before breakfast"),
        *(" at night", " on the roof"),
    ],
    "trait": [
        *("little", "clever", "brave", "kind", "cheerful", "curious", "quiet", "happy", "tall", "merry", "dreamy"),
        *("careful", "lively", "gentle", "proud", "funny", "stubborn", "polite", "wild", "patient"),
    ],
    "snug": ["small", "white", "tiny", "crooked", "warm", "wooden", "red", "round", "narrow", "lonely", "pink"],
    "where": [
        *("near the woods", "by the sea", "at the end of the road", "in the valley", "next to the mill"),
        *("under a big oak", "behind the church", "far from the town", "by the railway", "among the hills"),
    ],
    "when": [
        *("One <weather> <daytime>", "One <weather> <daytime> in <month>"),
        *("On a <weather> <month> <daytime>", "<early> on a <weather> <weekday>"),
    ],
    "weather": [
        *("sunny", "warm", "bright", "windy", "cool", "clear", "fine", "quiet", "mild", "golden", "lovely", "lazy"),
    ],
    "daytime": ["morning", "day", "afternoon", "Sunday", "Monday", "Friday", "Tuesday"],
    "weekday": ["Sunday", "Monday", "Friday", "Tuesday", "Saturday", "Thursday"],
    "month": ["spring", "summer", "autumn", "May", "June", "July", "April", "March"],
    "early": ["Early", "Late", "Before lunch", "After breakfast", "After lunch"],
    "air": [
        "The sun <shone>.",
        "The sky was [blue|clear|full of little clouds|pale|high].",
        "A [soft|cool|gentle|warm|salty|lazy] wind [blew|came from the south|moved the leaves|sang in the trees].",
        "[The air|The wind|Everything] smelled of [flowers|hay|rain|honey|bread|smoke|mint|apples].",
        "<flock> [sang|called|flew|quarrelled] [in the trees|all around|from roof to roof|high above].",
        "It was a [good|fine|nice|perfect] day for a [walk|song|game|picnic|dream].",
    ],
    "flock": ["Birds", "Sparrows", "Crows", "Swallows", "Two doves", "Starlings"],
    "shone": ["was shining", "felt warm", "stood high", "was low", "came and went", "made long shadows"],
    "sight": [
        "<Hero> saw {sight=place.sights}.",
        "<Hero> [stopped|stood still|waited a while] to look at {sight=place.sights}.",
        "<Hero> <counted> {number=number} {flock_tint=colour} {flock=flock}<lying about>.",
        "[There was nobody|Nobody was there], only {number=number} {flock_tint=colour} {flock=flock}.",
        "<Hero> [smiled|laughed|waved|whistled] when {hero.he} saw {sight=place.sights}.",
    ],
    "counted": ["saw", "counted", "found", "passed", "noticed", "came upon"],
    "lying about": ["", " on the way", " by the path", " near a wall", " in a row", " in the sun", " at the gate"],
    "carried": [
        "<Hero> had <snack> [with {hero.him}|in {hero.his} bag|in {hero.his} pocket|for the way].",
        "In {hero.his} [bag|basket|pocket|backpack] {hero.he} [had|found|carried] <snack> and <tool>.",
    ],
    "snack": [
        *("a bun", "some bread", "an apple", "a bottle of milk", "two biscuits", "a boiled egg"),
        *("a sausage", "six plums"),
    ],
    "tool": [
        *("a map", "a candle", "a long rope", "a spoon", "a pencil", "a mirror", "a comb"),
        *("a pair of socks", "a letter"),
    ],
    "sadly": [
        *("", " sadly", " in a small voice", " with a sigh", " and began to cry", " with wet eyes"),
        *(" and looked down", " and swallowed", " and shivered"),
    ],
    "gladly": [
        *("", " happily", " with a smile", " and laughed", " proudly", " and clapped", " and nodded"),
        *(" with shining eyes", " and blushed", " and bowed", " and winked"),
    ],
    "friendly": ["", " kindly", " gently", " with a smile", " politely", " and blinked", " and sneezed"],
    "quickly": [
        *("", " at once", " right away", " as fast as {hero.he} could", " on tiptoe", " without a word"),
        *(" with a beating heart", " with long steps", " in no time"),
    ],
    "said": ["said", "whispered", "called", "murmured"],
    "cried": ["cried", "called", "said", "shouted", "laughed"],
    "sobbed": ["said", "sobbed", "sighed", "whispered", "cried", "wailed"],
    "replied": ["said", "answered", "replied", "whispered", "mumbled"],
    "asked": ["asked", "wondered", "said", "whispered", "called"],
    "thanks": ["Thank you", "Thanks", "Thank you so much", "How kind of you", "A thousand thanks", "Hurrah"],
    "ran": ["ran", "hurried", "went", "walked", "dashed", "raced"],
    "walked": [
        *("went", "walked", "ran", "strolled", "rode {hero.his} bicycle", "followed a path", "was on {hero.his} way"),
    ],
    "Hero": ["{hero.He}", "{hero}"],
    "So hero": [
        *("{hero}", "{hero.He}", "So {hero.he}", "Then {hero}", "At once {hero.he}"),
        *("Now {hero.he}", "Little {hero}"),
    ],
    "Friend": ["The {friend}", "{na}{me}", "The {nature} {friend}"],
    "friend": ["the {friend}", "{na}{me}", "the {nature} {friend}"],
    "met": [
        "{nature=nature as a} {friend=animal} called {na=name_start}{me=name_end}",
        "{nature=nature as a} {friend=animal} by the name of {na=name_start}{me=name_end}",
        "{nature=nature as a} {friend=animal}, whose name was {na=name_start}{me=name_end}",
    ],
    "arrives": [
        "<suddenly> {nature=nature as a} {friend=animal} called {na=name_start}{me=name_end} {friend.came} <toward>.",
        "<suddenly> {hero.he} heard <a sound>. It was <met>.",
        "<suddenly> somebody <coughed>. It was <met>.",
    ],
    "suddenly": [
        *("Just then", "Then", "After a while", "Suddenly", "All at once", "At that moment"),
        *("A little later", "Out of nowhere"),
    ],
    "a sound": [
        *("a noise", "a whisper", "steps", "a sneeze", "a soft voice", "somebody sing", "a cough", "a funny song"),
    ],
    "coughed": [
        *("coughed", "said hello", "laughed", "touched {hero.his} hand", "pulled at {hero.his} {clothes}", "yawned"),
    ],
    "toward": [
        *("up to {hero.him}", "out of its {friend.home}", "along", "closer", "across the path", "into the light"),
        *("around the corner", "past {hero.him} and stopped"),
    ],
    "home": [
        "<Hero> {hobby.did} all the way <back>.",
        "<Hero> went home <in what mood>, {hobby.doing}<in what way>.",
        "That [night|evening] {hero} "
        "[slept well|dreamed of the {place}|could not stop smiling|told it all to the moon].",
        "And {hero} {hobby.did} until [bedtime|the stars came out|the moon was up|supper|everybody laughed].",
        "At home {hero.he} hung up {hero.his} {tint} {clothes} and "
        "[smiled|yawned|told everything|had soup|fell asleep].",
    ],
    "back": ["home", "back", "to the garden gate", "to {hero.his} bed", "through the fields"],
    "in what mood": [
        *("happy", "tired", "in the moonlight", "under the stars", "for supper", "a little later", "in the rain"),
    ],
    "in what way": ["", " for joy", " backwards", " like never before", " in the dark"],
}
