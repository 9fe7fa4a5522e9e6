"""Frequent English words, our own choice: the built-in tokenizer has one token for each, as those of real models do."""

_TEXT = """
the of and to in is that it for was on as with be by at he this are or his from have an they which not had one you
were all her she there would their we him been has when who will no more if out up so what about can said them into
some could then time only other its two than may any new my now these such like our me over man even most made after
also did many before must through back where much your way well down should because each just those people how too
little good very make world still see own work men day get here between both life being under never same another know
while last might us great old year off come since against go came right used take three himself few house use during
without again place around however home small found thought went say part once general high upon school every does got
united left number course war until always away something fact though water less public put think almost hand enough
far took head yet government system better set told nothing night end why called going look find asked later knew
point next city business give group toward young days let room word social present several order second national
possible rather face per among form important often things looked early white case large big need four within felt
along children saw best church ever least power development light thing seemed family interest want members mind
country area others done turned although open service certain kind different problem began door help means sense whole
matter name example please write answer question following list table text data value result model function code
language user story explain describe information provide first third using based given create include note error key
"""

COMMON = tuple(_TEXT.split())
